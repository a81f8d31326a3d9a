// Shared memory of the kernel for at most 16 heads.
#pragma once

#include "cuda/prefill_attention/kernel.hpp"
#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill::few_heads {

constexpr int kHeads = kFewHeads;
constexpr int kWarps = 4;  // of a warpgroup

// Keys stand on M and heads on N, so that a thread has 4 heads: head 8 * (j / 2) + 2 * (lane % 4) + j % 2 for j < 4.
constexpr int kThreadHeads = 4;
__device__ __forceinline__ int head_of(int j, int lane) { return j / 2 * 8 + lane % 4 * 2 + j % 2; }
// Of the 8 sums of a product 64 x 16 sum i belongs to head accumulator_head(i) of the thread, and to row
// warp * 16 + lane / 4 + 8 * accumulator_half(i).
__host__ __device__ constexpr int accumulator_head(int i) { return i / 4 * 2 + i % 2; }
__host__ __device__ constexpr int accumulator_half(int i) { return i / 2 % 2; }

struct Shared : SharedTiles<kHeads, 3> {
  alignas(16) uint8_t codes[kHeads / format::kGroupHeads][format::kGroupWidth];  // of a row, as in the output pair
  float factor[kHeads];          // of the accumulators, at the end of a row; 0: the output is 0
  int rescale[kStages];          // 0: alpha is 1 and not there
  float alpha[kStages][kHeads];  // what the accumulators of a head are multiplied by before a tile
  float q_square[kBlocks][kHeads];
  float warp_max[kWarps][kHeads];  // of scores: the largest logit in a warp's 16 keys of a tile
  float warp_sum[kWarps][kHeads];
  float warp_top[kWarps][kHeads];
  alignas(8) float largest[2][kBlocks / 2][kWarps][kHeads];  // of values: |o| in a warp's 16 dims of a block
};
static_assert(sizeof(Shared) <= kMostSharedBytes);

}  // namespace megamla::cuda::prefill::few_heads
