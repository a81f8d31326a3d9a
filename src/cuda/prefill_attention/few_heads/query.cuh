// A row's 16 heads of Q: loaded into registers of the scores role while the row before is attended, rotated and stored
// to shared memory when its turn comes.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/prefill_attention/few_heads/shared.cuh"

namespace megamla::cuda::prefill::few_heads {

// Thread t holds of head t % 16 chunk t / 16 of each block of 64 dims: a warp's load reads 512 bytes in one piece where
// Q is chunked, and every thread has one chunk to rotate.
struct ComingQuery {
  uint4 chunks[kBlocks];
  float4 cos_sin;  // of threads below 16: a 16th of the row's cosines and sines
  bool rotated;
  bool outside;  // the position is no row of the table

  __device__ __forceinline__ void load(const PrefillParams& p, const Row& row, const ComingPosition& position,
                                       int thread) {
    const Rotation rotation = rotation_of(p, position);
    rotated = rotation.cos_sin != nullptr;
    outside = rotation.outside;
    if (!row.any()) return;
    if (rotated && thread < format::kRopeDim / 4) {
      cos_sin = reinterpret_cast<const float4*>(rotation.cos_sin)[thread];
    }
    const int head = thread % kHeads;
    const int chunk = thread / kHeads;
    if (head >= p.live_heads) return;
    const QueryStrides strides(p);
    const uint16_t* from =
        p.q + row.token * p.q_token_stride + head * strides.head + chunk / 2 * strides.chunk + chunk % 2 * 8;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) chunks[b] = ptx::load_stream(from + b * 4 * strides.chunk, true);
  }

  // For all threads of the role.
  __device__ __forceinline__ void store(const PrefillParams& p, Shared& shared, int slot, int thread) {
    const int head = thread % kHeads;
    const int chunk = thread / kHeads;
    float4* table = reinterpret_cast<float4*>(shared.cos_sin[slot]);
    if (rotated && thread < format::kRopeDim / 4) table[thread] = cos_sin;
    if (thread == 0) shared.rotated[slot] = rotated ? 1 : 0;
    if (p.q_norm != 0) {
      float square = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) square += sum_of_squares(chunks[b]);
      shared.q_square[chunk][head] = square;
    }
    ptx::named_barrier<1, kScoreThreads>();
    if (rotated) {
      chunks[kBlocks - 1] = rotate_pairs(chunks[kBlocks - 1], table[chunk], table[format::kRopeDim / 8 + chunk]);
    }
    const uint32_t at = chunk_address(ptx::shared_address(shared.q) + head * kRowBytes, head % 8, chunk);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) ptx::store_shared(at + b * Shared::kQueryBlockBytes, chunks[b]);
    ptx::fence_async_proxy();
    ptx::named_barrier<1, kScoreThreads>();
  }
};

}  // namespace megamla::cuda::prefill::few_heads
