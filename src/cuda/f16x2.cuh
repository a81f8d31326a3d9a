// Two fp16 in a register, the first in the low half.
#pragma once

#include <cstdint>

namespace megamla::cuda {

// The nearest fp16, ties to even.
__device__ __forceinline__ uint32_t f16x2_round(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint32_t f16x2_multiply(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ uint32_t f16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
// NaN only if both are.
__device__ __forceinline__ uint32_t f16x2_min(uint32_t a, uint32_t b) {
  uint32_t smaller;
  asm("min.f16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
  return smaller;
}
__device__ __forceinline__ uint32_t f16x2_max(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

}  // namespace megamla::cuda
