// Shared memory of the kernel for 64 heads.
#pragma once

#include "cuda/prefill_attention/output.cuh"
#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill {

struct Shared : SharedTiles<kTileHeads, 2> {
  static constexpr bool kProducersFetchQuery = true;

  // Producers -> scores; scores -> producers.
  uint64_t q_full[kHalves];
  uint64_t second_p_full[kStages];  // of the second half of a tile's keys; p_full: of the first
  uint64_t q_empty;
  // What the accumulators of a thread's two heads are multiplied by before a tile; by warps of 16 heads, whether by 1.
  int rescale[kStages][kTileHeads / 16];
  float2 alpha[kStages][kTileHeads / 2];
  alignas(16) uint8_t codes[kValueThreads / 32][kGroupsTogether * kCodeBytes];  // of a row, by warps of values
  float q_square[2][kTileHeads];  // sums of q^2, of the two threads that look after a head

  __device__ __forceinline__ void init_barriers() {
    SharedTiles::init_barriers();
    for (uint64_t& full : second_p_full) ptx::mbarrier_init(&full, kScoreThreads);
    for (uint64_t& full : q_full) ptx::mbarrier_init(&full, kProducerThreads);
    ptx::mbarrier_init(&q_empty, kScoreThreads);
  }
};
static_assert(sizeof(Shared) <= kMostSharedBytes);

}  // namespace megamla::cuda::prefill
