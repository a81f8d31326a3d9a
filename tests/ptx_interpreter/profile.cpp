#include "profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

namespace ptx {
namespace {

class Profiles {
 public:
  explicit Profiles(const char* path) : path_(path) {}
  ~Profiles() {
    std::FILE* file = std::fopen(path_, "w");
    if (file == nullptr) return;
    for (const auto& [program, profile] : all_) write(file, *program, *profile);
    (void)std::fclose(file);
  }
  Profiles(const Profiles&) = delete;
  Profiles& operator=(const Profiles&) = delete;

  Profile* of(const std::shared_ptr<const Program>& program) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Profile>& profile = all_[program];
    if (profile == nullptr) profile = std::make_unique<Profile>();
    profile->counters.resize(program->code.size());
    return profile.get();
  }

 private:
  // Places of the same line of the CUDA source are added up; a line without one stands for itself.
  static void write(std::FILE* file, const Program& program, const Profile& profile) {
    std::map<std::string, Counters> lines;
    Counters all;
    const auto add = [](Counters& to, const Counters& c) {
      to.instructions += c.instructions;
      to.shared_passes += c.shared_passes;
      to.shared_least += c.shared_least;
      to.global_sectors += c.global_sectors;
      to.global_least += c.global_least;
    };
    for (size_t pc = 0; pc < profile.counters.size(); ++pc) {
      const Counters& c = profile.counters[pc];
      if (c.instructions == 0) continue;
      add(all, c);
      add(lines[program.source(static_cast<uint32_t>(pc))], c);
    }
    std::vector<std::pair<std::string, Counters>> sorted(lines.begin(), lines.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second.instructions > b.second.instructions; });
    fmt::print(file, "{}\n  {} launches, {} instructions of warps\n", demangled(program.name), profile.launches,
               all.instructions);
    fmt::print(file, "  {:>14} {:>6}  {:>12} {:>12}  {:>12} {:>12}  line\n", "instructions", "share", "shared pass",
               "least", "sectors", "least");
    for (const auto& [line, c] : sorted) {
      fmt::print(file, "  {:>14} {:>5.1f}%  {:>12} {:>12}  {:>12} {:>12}  {}\n", c.instructions,
                 100.0 * static_cast<double>(c.instructions) / static_cast<double>(all.instructions), c.shared_passes,
                 c.shared_least, c.global_sectors, c.global_least, line);
    }
    fmt::print(file, "\n");
  }

  const char* path_;
  std::mutex mutex_;
  std::map<std::shared_ptr<const Program>, std::unique_ptr<Profile>> all_;
};

}  // namespace

Profile* profile_of(const std::shared_ptr<const Program>& program) {
  static const char* path = std::getenv("MEGAMLA_PTX_PROFILE");
  if (path == nullptr) return nullptr;
  static Profiles profiles(path);
  return profiles.of(program);
}

void count_shared(Counters& counters, const uint64_t (&offsets)[kLanes], Mask lanes, uint64_t bytes) {
  // Lanes with more than 4 bytes go in halves or quarters of a warp.
  const int together = bytes <= 4 ? kLanes : static_cast<int>(kLanes * 4 / bytes);
  for (int first = 0; first < kLanes; first += together) {
    std::set<uint64_t> words;
    for (int i = first; i < first + together; ++i) {
      if ((lanes >> i & 1) == 0) continue;
      for (uint64_t at = offsets[i] / 4; at < (offsets[i] + bytes + 3) / 4; ++at) words.insert(at);
    }
    if (words.empty()) continue;
    uint64_t of_bank[32] = {};
    for (const uint64_t word : words) ++of_bank[word % 32];
    counters.shared_passes += *std::max_element(std::begin(of_bank), std::end(of_bank));
    ++counters.shared_least;
  }
}

void count_global(Counters& counters, const uint64_t (&addresses)[kLanes], Mask lanes, uint64_t bytes) {
  std::set<uint64_t> sectors;
  for (int i = 0; i < kLanes; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    for (uint64_t at = addresses[i] / 32; at <= (addresses[i] + bytes - 1) / 32; ++at) sectors.insert(at);
  }
  counters.global_sectors += sectors.size();
  counters.global_least += (static_cast<uint64_t>(std::popcount(lanes)) * bytes + 31) / 32;
}

}  // namespace ptx
