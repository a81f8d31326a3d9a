// Every seed and every find of the fuzz targets, replayed: tests/fuzz/corpus/<target>/.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/finding.hpp"
#include "fuzz/targets.hpp"

namespace megamla::fuzz {
namespace {

struct Target {
  const char* name;
  void (*run)(std::span<const uint8_t>);
};
void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, HoldsNoFinding) {
  const std::string folder = std::string(MEGAMLA_SOURCE_DIR "/tests/fuzz/corpus/") + GetParam().name;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    SCOPED_TRACE(entry.path());
    try {
      GetParam().run(bytes);
    } catch (const Finding& finding) {
      ADD_FAILURE() << finding.what();
    }
    ++files;
  }
  EXPECT_GT(files, 0) << folder;
}

constexpr Target kTargets[] = {{"safetensors", safetensors}, {"config", config},       {"trace", trace},
                               {"golden", golden},           {"attention", attention}, {"cache_ops", cache_ops},
                               {"linear_ops", linear_ops},   {"index_ops", index_ops}, {"layer", layer}};
INSTANTIATE_TEST_SUITE_P(Targets, Corpus, testing::ValuesIn(kTargets),
                         [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace megamla::fuzz
