#include "cpu/widen.hpp"

#include <bit>

#include "cpu/simd.hpp"
#include "cpu/widen_avx512.hpp"

namespace megamla::cpu {
namespace {

// e4m3 -> fp32 without a branch. A normal code's exponent and mantissa move to fp32's place with the bias corrected; a
// subnormal one (below 8) is read one exponent higher, as 2^-6 + m 2^-9, and loses the 2^-6 again.
inline float e4m3_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7fU;
  const uint32_t subnormal = magnitude < 8 ? 1U : 0U;
  const float raised = std::bit_cast<float>((magnitude << 20) + ((120U + subnormal) << 23));
  const float value = raised - (subnormal != 0 ? 0x1p-6F : 0.0F);
  const uint32_t bits = magnitude == 0x7f ? 0x7fc00000U : std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(code & 0x80U) << 24));
}

MEGAMLA_SIMD_CLONES void widen_e4m3_loop(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out) {
  for (int64_t g = 0; g < count / 32; ++g) {
    const float scale = scales[g];
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(e4m3_value(codes[g * 32 + i]) * scale);
      out[g * 32 + i].bits = static_cast<uint16_t>(bits >> 16);  // exact: 3 mantissa bits
    }
  }
}

}  // namespace

void widen_e4m3(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out) {
  has_avx512_vbmi() ? widen_e4m3_avx512(codes, scales, count, out) : widen_e4m3_loop(codes, scales, count, out);
}

MEGAMLA_SIMD_CLONES void widen_e4m3(const uint8_t* codes, const float* scales, int64_t count, float* out) {
  for (int64_t g = 0; g < count / 32; ++g) {
    const float scale = scales[g];
    for (int64_t i = 0; i < 32; ++i) out[g * 32 + i] = e4m3_value(codes[g * 32 + i]) * scale;
  }
}

MEGAMLA_SIMD_CLONES void widen_bf16(const format::Bf16* values, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(values[i].bits) << 16);
}

MEGAMLA_SIMD_CLONES void narrow_to_bf16(const float* values, int64_t count, format::Bf16* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t u = std::bit_cast<uint32_t>(values[i]);
    const uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40U;
    out[i].bits = static_cast<uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
}

}  // namespace megamla::cpu
