#include "cpu/simd/level.hpp"

#include "cpu/simd/targets.hpp"
// Behind targets.hpp.
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace megamla::cpu {
namespace {

struct Choice {
  const char* name;
  SimdLevel level;
  int64_t target;  // of Highway; the last choice is what every machine has
};

// Widest first.
#if HWY_ARCH_X86
constexpr std::array kChoices = {Choice{"avx512", SimdLevel::kAvx512, HWY_AVX3},
                                 Choice{"avx2", SimdLevel::kAvx2, HWY_AVX2}, Choice{"plain", SimdLevel::kPlain, 0}};
#elif HWY_ARCH_ARM_A64
constexpr std::array kChoices = {Choice{"neon", SimdLevel::kNeon, 0}};
#else
constexpr std::array kChoices = {Choice{"plain", SimdLevel::kPlain, 0}};
#endif

// Empty: not set.
std::string_view wanted() {
  const char* set = std::getenv("MEGAMLA_SIMD");
  return set == nullptr ? "" : set;
}

const Choice* find(std::string_view name) {
  const auto* found = std::find_if(kChoices.begin(), kChoices.end(), [&](const Choice& c) { return c.name == name; });
  return found == kChoices.end() ? nullptr : found;
}

// Highway keeps its own limit, which must be there before anything is dispatched: set when the library is loaded.
const SimdLevel kLimit = [] {
  const Choice* limit = find(wanted());
  if (limit == nullptr) return kChoices.front().level;
  int64_t wider = 0;
  for (const Choice& choice : kChoices) wider |= choice.level > limit->level ? choice.target : 0;
  if (wider != 0) hwy::DisableTargets(wider);
  return limit->level;
}();

}  // namespace

SimdLevel simd_limit() { return kLimit; }

const char* simd_name() {
  const int64_t supported = hwy::SupportedTargets();
  for (const Choice& choice : kChoices) {
    if ((choice.target & supported) != 0) return choice.name;
  }
  return kChoices.back().name;
}

Status check_simd_limit() {
  if (wanted().empty() || find(wanted()) != nullptr) return {};
  std::string names = kChoices.front().name;
  for (size_t i = 1; i < kChoices.size(); ++i)
    names += std::string(i + 1 < kChoices.size() ? ", " : " or ") + kChoices[i].name;
  return invalid_argument("MEGAMLA_SIMD: expected {}, got '{}'", names, wanted());
}

}  // namespace megamla::cpu
