// Warp matrix multiply (mma.sync m16n8k16, fp32 sums) and the register and shared-memory moves that feed it.
//
// With g = lane / 4 and c = lane % 4 a lane holds
//   a (16 x 16): rows g, g + 8 of columns 2c, 2c + 1 (words 0, 1), then of columns 2c + 8, 2c + 9 (words 2, 3)
//   b (16 x 8):  rows 2c, 2c + 1 of column g (word 0), rows 2c + 8, 2c + 9 (word 1)
//   d (16 x 8):  row g of columns 2c, 2c + 1 (0, 1), row g + 8 (2, 3)
#pragma once

#include <cstdint>

namespace megamla::cuda::ptx {

using FragmentA = uint32_t[4];

__device__ __forceinline__ void mma_f16(float (&d)[4], const FragmentA& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], const FragmentA& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// An 8 x 8 matrix of 16-bit elements, row g in lanes 4g .. 4g + 3: its transpose.
__device__ __forceinline__ uint32_t transposed(uint32_t v) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
  return d;
}

// Codes 0, 1 (2, 3) of four e4m3 codes.
__device__ __forceinline__ uint32_t low_e4m3_to_f16(uint32_t codes) {
  uint32_t d;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n" : "=r"(d) : "r"(codes));
  return d;
}
__device__ __forceinline__ uint32_t high_e4m3_to_f16(uint32_t codes) {
  uint32_t d;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}\n" : "=r"(d) : "r"(codes));
  return d;
}
// Half kHalf of a pair, twice; an instruction that uses it reads it so.
template <int kHalf>
__device__ __forceinline__ uint32_t both_f16(uint32_t pair) {
  uint32_t d;
  if (kHalf == 0) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}\n" : "=r"(d) : "r"(pair));
  } else {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}\n" : "=r"(d) : "r"(pair));
  }
  return d;
}

// Volatile keeps them between the barriers around them.
__device__ __forceinline__ uint32_t load_shared_u8(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_u16(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_1(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 load_shared_2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

}  // namespace megamla::cuda::ptx
