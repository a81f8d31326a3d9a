// The arrows of docs/design.md: apps -> layer, io -> ops -> {reference, cpu, cuda} -> {format, plan, core}; the public
// headers stand alone. Every #include of another room is held against them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Rooms = std::set<std::string>;

// Room -> rooms whose headers it may include, beside its own. "megamla" is include/megamla.
const std::map<std::string, Rooms> kArrows = {
    {"megamla", {}},
    {"format", {"megamla"}},
    {"core", {"megamla", "format"}},
    {"plan", {"megamla", "core", "format"}},
    {"reference", {"megamla", "core", "format", "plan"}},
    {"cpu", {"megamla", "core", "format", "plan"}},
    {"cuda", {"megamla", "core", "format", "plan"}},
    {"ops", {"megamla", "core", "format", "plan", "reference", "cpu", "cuda"}},
    {"layer", {"megamla", "core", "format", "plan", "ops"}},
    {"io", {"megamla", "core", "format", "plan"}},
    // cpu: bench and doctor ask what the machine's GEMM reaches, the bound that they print. cuda: its memory, its
    // events.
    {"apps", {"megamla", "core", "format", "plan", "cpu", "cuda", "ops", "layer", "io"}},
};

// Room of a path relative to the repository; "" outside all rooms.
std::string room_of(const fs::path& relative) {
  auto part = relative.begin();
  if (part == relative.end()) return "";
  if (*part == "apps") return "apps";
  if ((*part == "src" || *part == "include") && ++part != relative.end()) return part->string();
  return "";
}

bool is_source(const fs::path& path) {
  static const Rooms kExtensions = {".h", ".hpp", ".cpp", ".cu", ".cuh"};
  return kExtensions.contains(path.extension().string());
}

// Room that an #include names; "" for a header that is no part of the repository.
std::string included_room(const fs::path& root, const fs::path& file, const std::string& name) {
  for (const fs::path& base : {root / "src", root / "include", root / file.parent_path(), root / "apps" / "megamla"}) {
    const fs::path candidate = (base / name).lexically_normal();
    if (fs::exists(candidate)) return room_of(candidate.lexically_relative(root));
  }
  return "";
}

// "src/core/a.cpp:3: core may not include ops (ops/op.hpp)", in path order.
std::vector<std::string> offenders(const fs::path& root) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::vector<std::string> found;
  for (const char* top : {"src", "include", "apps"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const fs::path file = entry.path().lexically_relative(root);
      const std::string room = room_of(file);
      const auto arrows = kArrows.find(room);
      if (arrows == kArrows.end()) {
        found.push_back(file.string() + ": room " + room + " is not in the list of arrows");
        continue;
      }
      std::ifstream in(entry.path());
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        std::smatch match;
        if (!std::regex_search(line, match, kInclude)) continue;
        const std::string target = included_room(root, file, match[1]);
        if (target.empty() || target == room || arrows->second.contains(target)) continue;
        found.push_back(file.string() + ":" + std::to_string(number) + ": " + room + " may not include " + target +
                        " (" + match[1].str() + ")");
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

class PlantedTree : public testing::Test {
 protected:
  PlantedTree() : root_(fs::path(testing::TempDir()) / "megamla_arrows") { fs::remove_all(root_); }
  ~PlantedTree() override { fs::remove_all(root_); }
  void plant(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(PlantedTree, AllowedIncludesPass) {
  plant("include/megamla/types.h", "#include <stdint.h>\n");
  plant("src/core/status.hpp", "#include \"megamla/types.h\"\n#include <string>\n");
  plant("src/ops/op.cpp", "#include \"core/status.hpp\"\n#include \"op.hpp\"\n");
  plant("src/ops/op.hpp", "");
  plant("apps/megamla/main.cpp", "#include \"ops/op.hpp\"\n#include <megamla/types.h>\n");
  EXPECT_EQ(offenders(root_), std::vector<std::string>{});
}

TEST_F(PlantedTree, EveryKindOfBackwardIncludeIsFound) {
  plant("include/megamla/types.h", "#include \"core/status.hpp\"\n");
  plant("src/core/status.hpp", "\n\n  #  include \"ops/op.hpp\"\n");
  plant("src/ops/op.hpp", "#include <layer/layer.hpp>\n");
  plant("src/layer/layer.hpp", "#include \"../cpu/gemm.hpp\"\n#include \"io/safetensors.hpp\"\n");
  plant("src/io/safetensors.hpp", "#include \"ops/op.hpp\"\n");
  plant("src/cpu/gemm.hpp", "#include \"reference/gemm.hpp\"\n");
  plant("src/reference/gemm.hpp", "");
  plant("src/attic/old.cpp", "");
  const std::vector<std::string> expected = {
      "include/megamla/types.h:1: megamla may not include core (core/status.hpp)",
      "src/attic/old.cpp: room attic is not in the list of arrows",
      "src/core/status.hpp:3: core may not include ops (ops/op.hpp)",
      "src/cpu/gemm.hpp:1: cpu may not include reference (reference/gemm.hpp)",
      "src/io/safetensors.hpp:1: io may not include ops (ops/op.hpp)",
      "src/layer/layer.hpp:1: layer may not include cpu (../cpu/gemm.hpp)",
      "src/layer/layer.hpp:2: layer may not include io (io/safetensors.hpp)",
      "src/ops/op.hpp:1: ops may not include layer (layer/layer.hpp)",
  };
  EXPECT_EQ(offenders(root_), expected);
}

TEST(DependencyArrows, NoneInTheRepositoryPointsBack) {
  ASSERT_TRUE(fs::exists(fs::path(MEGAMLA_SOURCE_DIR) / "src/core/status.hpp"));
  std::string list;
  for (const std::string& offender : offenders(MEGAMLA_SOURCE_DIR)) list += offender + "\n";
  EXPECT_EQ(list, "");
}

}  // namespace
