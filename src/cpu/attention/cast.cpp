#include "cpu/attention/cast.hpp"

#include <algorithm>
#include <bit>

#include "cpu/attention/vector_avx512.hpp"
#include "cpu/simd.hpp"
#include "format/output_cast.hpp"

namespace megamla::cpu::attention {
namespace {

// format::float_to_e4m3 without a branch.
inline uint8_t e4m3_code(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 24) & 0x80U;
  const uint32_t magnitude = u & 0x7fffffffU;
  // Subnormal result: adding 2^14 puts the unit of 2^-9 at the last place of an fp32.
  const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14F);
  const uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  const uint32_t normal = (rounded >> 20) - (120U << 3);
  const uint32_t code = magnitude < std::bit_cast<uint32_t>(0x1p-6F) ? subnormal : normal;
  const uint32_t saturated = code < 0x7eU ? code : 0x7eU;
  return static_cast<uint8_t>(magnitude > 0x7f800000U ? 0x7fU : (sign | saturated));
}

MEGAMLA_SIMD_CLONES uint8_t cast_group(const float* x, uint8_t* data) {
  // As integers, magnitudes compare like floats and their maximum needs no order of evaluation; NaN counts as 0.
  uint32_t largest = 0;
  for (int i = 0; i < format::kCastGroup; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffU;
    largest = std::max(largest, magnitude > 0x7f800000U ? 0U : magnitude);
  }
  const int e = format::output_group_exponent(std::bit_cast<float>(largest));
  const float factor = format::inverse_power_of_two(e);
  for (int i = 0; i < format::kCastGroup; ++i) data[i] = e4m3_code(x[i] * factor);
  return static_cast<uint8_t>(e + 127);
}

}  // namespace

void cast_output_groups(Multiplier multiplier, const float* x, int64_t groups, uint8_t* data, int64_t data_stride,
                        uint8_t* scales) {
  if (multiplier == Multiplier::kAvx512Bf16) return cast_output_groups_avx512(x, groups, data, data_stride, scales);
  for (int64_t g = 0; g < groups; ++g) scales[g] = cast_group(x + g * format::kCastGroup, data + g * data_stride);
}

}  // namespace megamla::cpu::attention
