// The scores warpgroup: Q K^T of one key tile after another, softmax with a running maximum, P as bf16 to shared
// memory.
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/decode_attention/query.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda {

struct Scores {
  const DecodeParams& p;
  Shared& shared;
  int thread;
  int lane;
  int rows[2];  // heads of the tile whose logits this thread has
  Ring ring;

  __device__ Scores(const DecodeParams& params, Shared& s, int t) : p(params), shared(s), thread(t), lane(t % 32) {
    rows[0] = t / 32 * 16 + lane / 4;
    rows[1] = rows[0] + 8;
  }

  __device__ __forceinline__ void multiply(float (&logits)[32]) const {
    const ptx::Descriptor q(ptx::shared_address(shared.q), 0, 8 * kRowBytes);
    const ptx::Descriptor k(ptx::shared_address(shared.keys[ring.stage]), 0, 8 * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint32_t offset = block * kBlockBytes + step * 32;
        ptx::wgmma_m64n64k16(logits, q.at(offset), k.at(offset), 1);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(logits);
  }

  // Maxima of the tile move the running ones; the factor of what was summed before goes to the values role.
  __device__ __forceinline__ void follow_maximum(const float (&logits)[32], float (&m)[2], float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = largest_logit(logits, r);
      const float next = largest > m[r] + kMaximumSlack ? largest : m[r];
      const float alpha = exp2_approx(m[r] - next);
      m[r] = next;
      sum[r] *= alpha;
      if (lane % 4 == 0) shared.alpha[ring.stage][rows[r]] = alpha;
    }
  }

  __device__ __forceinline__ void tile(const float (&scale)[2], float (&m)[2], float (&sum)[2]) {
    float logits[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) logits[i] = 0;
    ptx::mbarrier_wait(&shared.keys_full[ring.stage], ring.parity);
    multiply(logits);
#pragma unroll
    for (int i = 0; i < 32; ++i) logits[i] *= scale[i / 2 % 2];
    mask_logits(logits, *reinterpret_cast<const uint2*>(shared.valid[ring.stage]), lane);
    follow_maximum(logits, m, sum);
    store_probabilities(logits, m, sum, ptx::shared_address(shared.p[ring.stage]), rows[0], lane);
    ptx::fence_async_proxy();
    ptx::mbarrier_arrive(&shared.p_full[ring.stage]);
    ring.advance();
  }

  __device__ __forceinline__ void publish(const float (&m)[2], float (&sum)[2], uint32_t parity) const {
    ptx::mbarrier_wait(&shared.stats_empty, parity ^ 1);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      if (lane % 4 == 0) {
        shared.row_max[rows[r]] = m[r];
        shared.row_sum[rows[r]] = sum[r];
      }
    }
    ptx::mbarrier_arrive(&shared.stats_full);
  }

  __device__ __forceinline__ void run() {
    const QueryPart part(shared, thread);
    const ComingRow first = load_row(p, 0);
    ComingPosition position = load_position(p, first.token);
    Row row = arrived(p, first);
    if (row.any() && row.begin < row.end) fetch_query(p, part, row);
    for (int index = 0; row.any(); ++index) {
      const ComingRow coming = load_row(p, index + 1);
      if (row.begin < row.end) arrange_query(p, shared, part, rotation_of(p, position));
      position = load_position(p, coming.token);
      ptx::named_barrier<1, kScoreThreads>();
      const float scale[2] = {logit_scale(p, shared, rows[0]), logit_scale(p, shared, rows[1])};
      float m[2] = {kNoMaximum, kNoMaximum};
      float sum[2] = {0, 0};
#pragma unroll 1
      for (int t = row.begin; t < row.end; t += row.ranks) tile(scale, m, sum);
      ptx::named_barrier<1, kScoreThreads>();  // every warp is done with Q and its squares
      row = arrived(p, coming);
      if (row.any() && row.begin < row.end) fetch_query(p, part, row);
      publish(m, sum, index & 1);
    }
  }
};

}  // namespace megamla::cuda
