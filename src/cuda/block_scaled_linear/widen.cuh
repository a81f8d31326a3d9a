// e4m3 codes to bf16, exact: put where bf16 has sign, exponent and mantissa they are the value times 2^-120. One factor
// takes that back and applies the scale. NaN codes, and scales beyond 2^7, whose factor leaves bf16, are rare and go
// through fp32.
#pragma once

#include <cstdint>

#include "cuda/bf16x2.cuh"
#include "cuda/record_decode.cuh"

namespace megamla::cuda::linear {

constexpr uint32_t kLargestScale = 134;  // 2^(134 - 127 + 120) is the largest power of two of bf16
constexpr uint32_t kBiasBits = 120 << 7;

// Of a scale byte up to kLargestScale.
__device__ inline uint32_t widening_factor(uint32_t scale_byte) { return bf16x2_both(kBiasBits + (scale_byte << 7)); }
// Of byte `i` of four.
__device__ inline uint32_t widening_factor(uint32_t scale_word, int i) {
  return __byte_perm(scale_word, 0, 0x4040 + 0x0101 * i) * 128 + bf16x2_both(kBiasBits);
}

// In the highest bits of its bytes: which of four scales are beyond the largest.
__device__ inline uint32_t bytes_beyond_largest(uint32_t scale_word) {
  return ((scale_word & 0x7f7f7f7fU) + 0x01010101U * (0x7f - (kLargestScale & 0x7f))) & scale_word & 0x80808080U;
}
// What a scale, byte `i` of four, is beyond the largest: 255 has NaN.
__device__ inline uint32_t excess_factor(uint32_t scale_word, int i) {
  const uint32_t scale = max((scale_word >> (8 * i)) & 0xff, kLargestScale);
  return bf16x2_both(scale == 0xff ? 0x7fc0U : (127 + scale - kLargestScale) << 7);
}
// Of codes 2k and 2k+1 of a word.
__device__ inline uint32_t pair_selector(int k) { return k == 0 ? 0x9180 : 0xb3a2; }
// Two codes of a word where bf16 has sign, exponent and mantissa.
__device__ inline uint32_t place_pair(uint32_t codes, uint32_t selector) {
  uint32_t extended;  // by their signs, to 16 bits
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(extended) : "r"(codes), "r"(selector));
  return (extended * 16) & 0x87f087f0U;
}
__device__ inline uint32_t widen_pair(uint32_t codes, int k, uint32_t factor) {
  return bf16x2_multiply(place_pair(codes, pair_selector(k)), factor);
}

__device__ inline uint32_t bf16x2_min(uint32_t a, uint32_t b) {
  uint32_t smaller;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
  return smaller;
}

// Notes NaN among codes that place_pair has placed: no others are as large.
class NanWatch {
 public:
  __device__ void add(uint32_t placed) {
    largest_ = bf16x2_max(largest_, placed);
    smallest_ = bf16x2_min(smallest_, placed);
  }
  // Not 0 if there was one.
  __device__ uint32_t seen() const { return ((largest_ + 0x00100010U) | (smallest_ + 0x00100010U)) & 0x08000800U; }

 private:
  uint32_t largest_ = 0, smallest_ = 0;
};
// The same with any code and any scale.
__device__ inline uint32_t widen_rare_pair(uint32_t codes, int k, uint32_t scale_byte) {
  const float scale = __uint_as_float(scale_byte == 0xff ? 0x7fc00000U
                                      : scale_byte == 0  ? 0x00400000U
                                                         : scale_byte << 23);
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes >> (16 * k))));
  float low;
  float high;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
  high *= scale;
  low *= scale;
  return bf16x2_round(low, high);
}

}  // namespace megamla::cuda::linear
