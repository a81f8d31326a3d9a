// Shared memory of the kernel for 64 heads.
#pragma once

#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill {

struct Shared : SharedTiles<kTileHeads, 2>, Meetings<2> {
  static constexpr bool kProducersFetchQuery = true;

  // Producers -> scores; scores -> producers.
  uint64_t q_full;
  uint64_t q_empty;
  alignas(16) float cos_sin[2][format::kRopeDim];  // of even and odd rows
  int rotated[2];
  float alpha[kStages][kTileHeads];  // what the accumulators of a head are multiplied by before a tile
  float q_square[2][kTileHeads];     // sums of q^2, of the two threads that look after a head
  float factor[kTileHeads];          // of the accumulators, at the end of a row; 0: the output is 0

  __device__ __forceinline__ void init_barriers() {
    Meetings<2>::init_barriers();
    ptx::mbarrier_init(&q_full, kProducerThreads);
    ptx::mbarrier_init(&q_empty, kScoreThreads);
  }
};
static_assert(sizeof(Shared) <= kMostSharedBytes);

}  // namespace megamla::cuda::prefill
