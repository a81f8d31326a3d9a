// e4m3fn, e2m1 and ue8m0: the number formats of contract section 2, as pure functions on codes.
#pragma once

#include <cstdint>

#include "format/host_device.hpp"

namespace megamla::format {

constexpr float kE4m3Max = 448.0F;
constexpr float kE2m1Max = 6.0F;

// e4m3fn: sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN, there is no infinity.
MEGAMLA_HD constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // subnormal: magnitude * 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9F;
    return bit_cast<float>(bit_cast<uint32_t>(value) | sign);
  }
  return bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Round to nearest even, saturate to +-448 (infinities too), NaN -> 0x7f, the sign of zero is kept.
MEGAMLA_HD constexpr uint8_t float_to_e4m3(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= bit_cast<uint32_t>(464.0F))
    return static_cast<uint8_t>(sign | 0x7eu);  // 464: half way to the missing 480
  if (magnitude < bit_cast<uint32_t>(0x1p-6F)) {
    // Subnormal result: adding 2^14 puts the unit of 2^-9 at the last place of an fp32, so the addition rounds to
    // nearest even.
    const float shifted = bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<uint8_t>(sign | (bit_cast<uint32_t>(shifted) - bit_cast<uint32_t>(0x1p14F)));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

// e2m1: bit 3 is the sign.
MEGAMLA_HD constexpr float e2m1_to_float(uint8_t code) {
  constexpr float kValues[16] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  return kValues[code & 15u];
}

// Nearest, ties to the even code, saturate to +-6; the sign of zero is kept; NaN -> +-6: e2m1 has no NaN.
MEGAMLA_HD constexpr uint8_t float_to_e2m1(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((u >> 28) & 8u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 7u);
  const float a = bit_cast<float>(magnitude);
  // Midpoints between neighbours; at a midpoint the even code wins.
  const uint8_t code = static_cast<uint8_t>((a > 0.25F) + (a >= 0.75F) + (a > 1.25F) + (a >= 1.75F) + (a > 2.5F) +
                                            (a >= 3.5F) + (a > 5.0F));
  return static_cast<uint8_t>(sign | code);
}

// ue8m0: byte b is 2^(b-127); 0xff is NaN. Byte 0 is 2^-127, an fp32 subnormal.
MEGAMLA_HD constexpr float ue8m0_to_float(uint8_t byte) {
  if (byte == 0xff) return bit_cast<float>(0x7fc00000u);
  return bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}

// 2^-e; e in -127..127.
MEGAMLA_HD constexpr float inverse_power_of_two(int e) {
  return e <= 126 ? bit_cast<float>(static_cast<uint32_t>(127 - e) << 23) : bit_cast<float>(0x00400000u);
}

// ceil(log2(amax / 448)) exactly: 448 = 1.75 * 2^8, so the exponent of amax less 8, plus one if its significand is
// above 1.75. amax >= 0 and finite; 0 gives -127, the floor of the mxfp8 cast.
MEGAMLA_HD constexpr int group_exponent(float amax) {
  const uint32_t u = bit_cast<uint32_t>(amax);
  const int exponent = static_cast<int>(u >> 23) - 127;
  if (exponent == -127) return -127;  // fp32 subnormals: amax / 448 < 2^-134
  const int e = exponent - 8 + ((u & 0x7fffffu) > 0x600000u ? 1 : 0);
  return e < -127 ? -127 : e;
}

}  // namespace megamla::format
