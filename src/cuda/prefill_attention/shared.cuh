// Shared memory of the kernel for 64 heads.
#pragma once

#include "cuda/prefill_attention/output.cuh"
#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill {

struct Shared : SharedTiles<kTileHeads, 2> {
  uint64_t product_issued;  // scores -> values: Q K^T of a row's next tile
  // What the accumulators of a thread's two heads are multiplied by before a tile; by warps of 16 heads, whether by 1.
  int rescale[kStages][kTileHeads / 16];
  float2 alpha[kStages][kTileHeads / 2];
  alignas(16) uint8_t codes[kValueThreads / 32][kGroupsTogether * kCodeBytes];  // of a row, by warps of values
  float factor[kTileHeads];       // of the accumulators, at the end of a row; 0: the output is 0
  float q_square[2][kTileHeads];  // sums of q^2, of the two threads that look after a head

  __device__ __forceinline__ void init_barriers() {
    SharedTiles::init_barriers();
    ptx::mbarrier_init(&product_issued, kScoreThreads / 32);
  }
};
static_assert(sizeof(Shared) <= kMostSharedBytes);

}  // namespace megamla::cuda::prefill
