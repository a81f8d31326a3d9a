// Warpgroup matrix multiply (sm_90a): descriptors, fences, and the shapes that attention uses.
#pragma once

#include <cstdint>

namespace megamla::cuda::ptx {

// A shared-memory operand in the 128-byte swizzle. Offsets in bytes.
//   K-major:  rows of 128 bytes (64 bf16 of k), groups of 8 rows `stride` apart; `leading` is not used.
//   MN-major: 64 elements of m or n contiguous; the next 64 lie `leading` bytes on, the next 8 of k `stride` bytes on.
struct Descriptor {
  uint32_t low, high;
  // The mask takes off the rank that addresses carry in a cluster.
  __device__ __forceinline__ Descriptor(uint32_t address, uint32_t leading, uint32_t stride)
      : low(((leading >> 4) << 16) | ((address & 0x3ffff) >> 4)), high((1u << 30) | (stride >> 4)) {}
  // Shared memory ends at 256 KB: the sum stays within the address field.
  __device__ __forceinline__ uint64_t at(uint32_t offset) const {
    return (static_cast<uint64_t>(high) << 32) | (low + (offset >> 4));
  }
};

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accumulators across an asynchronous product.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Whatever the registers hold, without an instruction that would set them.
template <int kCount>
__device__ __forceinline__ void leave_undefined(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(d[i]));
}

// d[64 x 64] (+)= a b^T, both K-major.
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(accumulate));
}

// d[kFirst ...] as 64 x 128 = or += a b, a K-major, b MN-major.
template <int kFirst, int kCount>
__device__ __forceinline__ void wgmma_m64n128k16_mn(float (&d)[kCount], uint64_t a, uint64_t b, int accumulate = 1) {
  static_assert(kFirst + 64 <= kCount);
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 1;\n}\n"
      : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]), "+f"(d[kFirst + 4]),
        "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]), "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]),
        "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]), "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
        "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]), "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]),
        "+f"(d[kFirst + 20]), "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]), "+f"(d[kFirst + 24]),
        "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]), "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
        "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31]), "+f"(d[kFirst + 32]), "+f"(d[kFirst + 33]), "+f"(d[kFirst + 34]),
        "+f"(d[kFirst + 35]), "+f"(d[kFirst + 36]), "+f"(d[kFirst + 37]), "+f"(d[kFirst + 38]), "+f"(d[kFirst + 39]),
        "+f"(d[kFirst + 40]), "+f"(d[kFirst + 41]), "+f"(d[kFirst + 42]), "+f"(d[kFirst + 43]), "+f"(d[kFirst + 44]),
        "+f"(d[kFirst + 45]), "+f"(d[kFirst + 46]), "+f"(d[kFirst + 47]), "+f"(d[kFirst + 48]), "+f"(d[kFirst + 49]),
        "+f"(d[kFirst + 50]), "+f"(d[kFirst + 51]), "+f"(d[kFirst + 52]), "+f"(d[kFirst + 53]), "+f"(d[kFirst + 54]),
        "+f"(d[kFirst + 55]), "+f"(d[kFirst + 56]), "+f"(d[kFirst + 57]), "+f"(d[kFirst + 58]), "+f"(d[kFirst + 59]),
        "+f"(d[kFirst + 60]), "+f"(d[kFirst + 61]), "+f"(d[kFirst + 62]), "+f"(d[kFirst + 63])
      : "l"(a), "l"(b), "r"(accumulate));
}

// d[64 x 16] = or += a b^T, b K-major, a K-major or (kTransposed) MN-major.
template <bool kTransposed>
__device__ __forceinline__ void wgmma_m64n16k16(float (&d)[8], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %11, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposed ? 1 : 0));
}

}  // namespace megamla::cuda::ptx
