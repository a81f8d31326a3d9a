// Whether the encoders of contract section 3.1 can have written a scale group of finite values: they choose each scale
// by the group's largest value, so that scale and largest code fit. Bytes read in the wrong page layout seldom do.
#pragma once

#include "format/kv_record.hpp"

namespace megamla::format {

// ue8m0: the smallest power of two under which the largest value stays within 448, so its code is 224 or more, unless
// the floor of 1e-4 decided. Codes are never NaN, and no latent of a model reaches 448 * 2^8.
MEGAMLA_HD constexpr bool plausible_group(Fp8_528, const uint8_t* data, const uint8_t* scale, int group) {
  constexpr uint8_t kNan = 0x7f;
  constexpr uint8_t kLargestScale = 127 + 8;
  const uint8_t floor = static_cast<uint8_t>(group_exponent(kAmaxFloor) + 127);
  const uint8_t* codes = data + group * Fp8_528::kScaleGroup;
  uint8_t largest = 0;
  for (int i = 0; i < Fp8_528::kScaleGroup; ++i) {
    const uint8_t magnitude = codes[i] & 0x7fU;
    if (magnitude == kNan) return false;
    if (magnitude > largest) largest = magnitude;
  }
  if (scale[group] < floor || scale[group] > kLargestScale) return false;
  return scale[group] == floor || largest >= float_to_e4m3(kE4m3Max / 2);
}

// e4m3: largest / 6, never below its smallest value, positive. A normal scale is at most 1/16 off, so the largest code
// is 6; a subnormal one may be off by half of itself.
MEGAMLA_HD constexpr bool plausible_group(Nvfp4_288, const uint8_t* data, const uint8_t* scale, int group) {
  constexpr uint8_t kSmallestNormal = 8;
  constexpr uint8_t kNan = 0x7f;
  const uint8_t s = scale[group];
  if (s == 0 || s >= kNan) return false;
  const uint8_t* codes = data + group * Nvfp4_288::kScaleGroup / 2;
  int largest = 0;
  for (int i = 0; i < Nvfp4_288::kScaleGroup / 2; ++i) {
    const int low = codes[i] & 7;
    const int high = (codes[i] >> 4) & 7;
    if (low > largest) largest = low;
    if (high > largest) largest = high;
  }
  return s == 1 || largest == 7 || (s < kSmallestNormal && largest == 6);
}

}  // namespace megamla::format
