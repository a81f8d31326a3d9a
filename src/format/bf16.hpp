// bfloat16: the upper half of an fp32.
#pragma once

#include <cstdint>

#include "format/host_device.hpp"

namespace megamla::format {

struct Bf16 {
  uint16_t bits;
};

MEGAMLA_HD constexpr float to_float(Bf16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Round to nearest even; NaN stays a (quiet) NaN.
MEGAMLA_HD constexpr Bf16 to_bf16(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

MEGAMLA_HD constexpr float round_to_bf16(float x) { return to_float(to_bf16(x)); }

}  // namespace megamla::format
