// The two FP8 casts of 32 values: contract sections 7 (attention output) and 11 (MXFP8).
#pragma once

#include "format/kv_record.hpp"

namespace megamla::format {

constexpr int kCastGroup = 32;
constexpr uint8_t kZeroGroupScale = 105;  // of an all-zero group of the attention output: ceil(log2(1e-4 / 448)) + 127

// The exponent of an attention output's group from its max|x|, floored at 1e-4: group_exponent for normal numbers as
// one addition, which carries where the significand is above 1.75. Infinity gives 120.
MEGAMLA_HD constexpr int output_group_exponent(float amax) {
  const float bounded = amax > kAmaxFloor ? amax : kAmaxFloor;
  return static_cast<int>((bit_cast<uint32_t>(bounded) + 0x1fffffu) >> 23) - (127 + 8);
}

// NaN values become 0x7f and do not count for the maximum.
MEGAMLA_HD constexpr uint8_t cast_output_group(const float* x, uint8_t* data) {
  const int e = output_group_exponent(detail::amax(x, kCastGroup));
  const float factor = inverse_power_of_two(e);
  for (int i = 0; i < kCastGroup; ++i) data[i] = float_to_e4m3(x[i] * factor);
  return static_cast<uint8_t>(e + 127);
}

// No floor but the exponent's: an all-zero group has byte 0 and data 0. x holds bf16 values.
MEGAMLA_HD constexpr uint8_t cast_mxfp8_group(const float* x, uint8_t* data) {
  const float largest = detail::amax(x, kCastGroup);
  const int e = detail::is_finite(largest) ? group_exponent(largest) : 120;
  // 2^127, the factor of the smallest exponent, is still an fp32: x * 2^-e is one exact step, subnormal x included.
  const float factor = inverse_power_of_two(e);
  for (int i = 0; i < kCastGroup; ++i) data[i] = float_to_e4m3(x[i] * factor);
  return static_cast<uint8_t>(e + 127);
}

}  // namespace megamla::format
