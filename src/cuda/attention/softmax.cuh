// Softmax over a tile's logits as wgmma m64n64 leaves them in registers: of a warp's 16 heads a thread has rows
// lane / 4 and lane / 4 + 8; logits[i] is row i / 2 % 2, key i / 4 * 8 + lane % 4 * 2 + i % 2.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/attention/tile.cuh"
#include "cuda/ptx/sync.cuh"

namespace megamla::cuda {

constexpr float kNoMaximum = -1e30F;
// The running maximum follows the logits only when they exceed it by so many powers of two: probabilities stay below
// 2^8, and most tiles leave the accumulators as they are.
constexpr float kMaximumSlack = 8;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Bit k of `valid`: key k counts.
__device__ __forceinline__ void mask_logits(float (&logits)[32], uint2 valid, int lane) {
  if ((valid.x & valid.y) == 0xffffffffu) return;
  const uint2 mine = {valid.x >> (lane % 4 * 2), valid.y >> (lane % 4 * 2)};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t word = i < 16 ? mine.x : mine.y;
    if ((word & (1u << (i / 4 % 4 * 8 + i % 2))) == 0) logits[i] = __int_as_float(0xff800000);
  }
}

// The largest logit of row r of the thread, over the four lanes that share it; at least kNoMaximum.
__device__ __forceinline__ float largest_logit(const float (&logits)[32], int r) {
  float largest = kNoMaximum;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (i / 2 % 2 == r) largest = fmaxf(largest, logits[i]);
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  return fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
}

// Probabilities 2^(logit - m) of the logits kBegin .. kEnd - 1: unrounded into the sums, rounded to bf16 into the
// swizzled block at `block`, where the thread's first row is `row`.
template <int kBegin = 0, int kEnd = 32>
__device__ __forceinline__ void store_probabilities(const float (&logits)[32], const float (&m)[2], float (&sum)[2],
                                                    uint32_t block, int row, int lane) {
  // Chunk j of a row lies at j ^ (row % 8), and (row + 8) % 8 is row % 8.
  const uint32_t at = block + row * kRowBytes + (row % 8) * 16 + lane % 4 * 4;
#pragma unroll
  for (int i = kBegin; i < kEnd; i += 2) {
    const int r = i / 2 % 2;
    const float low = exp2_approx(logits[i] - m[r]);
    const float high = exp2_approx(logits[i + 1] - m[r]);
    sum[r] += low + high;
    ptx::store_shared((at ^ ((i / 4) << 4)) + r * 8 * kRowBytes, bf16x2_round(low, high));
  }
}

}  // namespace megamla::cuda
