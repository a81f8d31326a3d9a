// Two bf16 in a register, the first in the low half. Subnormals are kept.
#pragma once

#include <cstdint>

namespace megamla::cuda {

__device__ inline uint32_t bf16x2_multiply(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// NaN if either is NaN.
__device__ inline uint32_t bf16x2_max_nan(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
// NaN only if both are.
__device__ inline uint32_t bf16x2_max(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
__device__ inline uint32_t bf16x2_both(uint32_t bits) { return bits | (bits << 16); }
__device__ inline float bf16x2_low(uint32_t x) { return __uint_as_float(x << 16); }
__device__ inline float bf16x2_high(uint32_t x) { return __uint_as_float(x & 0xffff0000U); }
// The nearest bf16, ties to even; a NaN becomes another one.
__device__ inline uint32_t bf16x2_round(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// True if either is NaN.
__device__ inline bool unordered(float a, float b) {
  uint32_t either;
  asm("{\n.reg .pred p;\nsetp.nan.f32 p, %1, %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(either) : "f"(a), "f"(b));
  return either != 0;
}
__device__ inline float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

}  // namespace megamla::cuda
