// The scores warpgroup: K Q^T of one key tile after another, softmax with a running maximum, P as bf16 to shared
// memory; at the end of a row its sums, lse and max_logits.
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/prefill_attention/few_heads/query.cuh"
#include "cuda/prefill_attention/stats.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda::prefill::few_heads {

struct Scores {
  const PrefillParams& p;
  Shared& shared;
  int thread;
  int warp;
  int lane;
  Shared::Ring ring;

  // Of the thread's heads, in base-2 units.
  struct Softmax {
    float max[kThreadHeads];  // the running maximum, the same in all warps
    float sum[kThreadHeads];  // of 2^(logit - max), this thread's part
    float top[kThreadHeads];  // the largest logit of this thread
    __device__ __forceinline__ Softmax() {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) max[j] = top[j] = kNoMaximum, sum[j] = 0;
    }
  };

  __device__ Scores(const PrefillParams& params, Shared& s, int t)
      : p(params), shared(s), thread(t), warp(__shfl_sync(~0u, t / 32, 0)), lane(t % 32) {}

  // What a head's q . k is multiplied by to be a base-2 logit.
  __device__ __forceinline__ float logit_scale(int head) const {
    if (p.q_norm == 0) return p.logit_scale;
    float square = 0;
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) square += shared.q_square[block][head];
    return p.logit_scale * rsqrtf(square * (1.0F / format::kHeadDim) + p.q_norm_eps);
  }

  // Half `kHalf` of K Q^T for the tile that `ring` is at.
  template <int kHalf>
  __device__ __forceinline__ void product(float (&sums)[8]) const {
    ptx::mbarrier_wait(&shared.keys_full[ring.stage][kHalf], ring.parity);
    ptx::fence_async_proxy();  // the producers' copies
    const ptx::Descriptor k(ptx::shared_address(shared.keys[ring.stage]), 0, 8 * kRowBytes);
    const ptx::Descriptor q(ptx::shared_address(shared.q), 0, 8 * kRowBytes);
    ptx::pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlocks / kHalves; ++i) {
      const int block = kHalf * kHalfBlocks + i / kHalfBlocks * kBlocks / 2 + i % kHalfBlocks;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::wgmma_m64n16k16<false>(sums, k.at(block * kBlockBytes + step * 32),
                                    q.at(block * Shared::kQueryBlockBytes + step * 32), kHalf + i + step);
      }
    }
    ptx::wgmma_commit();
  }

  // The running maxima follow those of the tile where one of these is far above: rarely, so that the lanes and warps of
  // a head need not meet over their maxima otherwise.
  __device__ __forceinline__ void follow_maximum(const float (&logits)[8], int stage, Softmax& s) const {
    float largest[kThreadHeads];
    bool quiet = true;
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      largest[j] = kNoMaximum;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (accumulator_head(i) == j) largest[j] = fmaxf(largest[j], logits[i]);
      }
      s.top[j] = fmaxf(s.top[j], largest[j]);
      quiet = quiet && largest[j] <= s.max[j] + kMaximumSlack;
    }
    quiet = ptx::named_barrier_all<1, kScoreThreads>(quiet);
    if (thread == 0) shared.rescale[stage] = quiet ? 0 : 1;
    // Without the shuffle ptxas takes the branch for a divergent one and serialises the products that are under way.
    if (__shfl_sync(~0u, quiet ? 1 : 0, 0) != 0) return;
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
#pragma unroll
      for (int other = 4; other < 32; other *= 2)
        largest[j] = fmaxf(largest[j], __shfl_xor_sync(~0u, largest[j], other));
    }
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) shared.warp_max[warp][head_of(j, lane)] = largest[j];
    }
    ptx::named_barrier<1, kScoreThreads>();
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      const int head = head_of(j, lane);
      float x = shared.warp_max[0][head];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) x = fmaxf(x, shared.warp_max[w][head]);
      const float next = x > s.max[j] + kMaximumSlack ? x : s.max[j];
      const float alpha = exp2_approx(s.max[j] - next);
      s.max[j] = next;
      s.sum[j] *= alpha;
      if (thread < 4) shared.alpha[stage][head] = alpha;
    }
  }

  // P lies as [head][key], 128 bytes a head, swizzled; `to`: where lane l has head l / 16 * 8 + l % 8 and, of the
  // warp's 16 keys, the second 8 where l / 8 is odd.
  __device__ __forceinline__ void store_probabilities(const float (&logits)[8], uint32_t to, Softmax& s) const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int j = accumulator_head(i);
      const float first = exp2_approx(logits[i] - s.max[j]);
      const float second = exp2_approx(logits[i + 1] - s.max[j + 1]);
      s.sum[j] += first;
      s.sum[j + 1] += second;
      words[i / 2] = bf16x2_round(first, second);
    }
    ptx::store_matrices_transposed(to, words);
  }

  // The key tiles of a row. A tile's product is issued within the softmax of the tile before it, so that the tensor
  // cores need not wait for it.
  __device__ __forceinline__ void tiles(int count, Softmax& s) {
    float scale[kThreadHeads];
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) scale[j] = logit_scale(head_of(j, lane));
    const int p_head = lane / 16 * 8 + lane % 8;
    const uint32_t p_row =
        ptx::shared_address(shared.p[0]) + p_head * kRowBytes + ((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
    float sums[8];
    product<0>(sums);
    product<1>(sums);
#pragma unroll 1
    for (int left = count - 1; left >= 0; --left) {
      ptx::wgmma_wait<0>();
      ptx::pin(sums);
      const int stage = ring.stage;
      const uint32_t valid = shared.valid[stage][warp] >> (lane / 4);
      float logits[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool there = (valid >> (8 * accumulator_half(i)) & 1u) != 0;
        logits[i] = there ? sums[i] * scale[accumulator_head(i)] : __int_as_float(0xff800000);
      }
      ring.advance();
      if (left > 0) product<0>(sums);
      follow_maximum(logits, stage, s);
      if (left > 0) product<1>(sums);
      store_probabilities(logits, p_row + stage * static_cast<uint32_t>(sizeof shared.p[0]), s);
      ptx::fence_async_proxy();
      ptx::mbarrier_arrive(&shared.p_full[stage]);
    }
  }

  // The row's sums become the factors of its accumulators. `sink`: of head `thread`.
  __device__ __forceinline__ void finish(const Row& row, Softmax& s, float sink, bool outside, int slot) const {
#pragma unroll
    for (int other = 4; other < 32; other *= 2) {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) {
        s.sum[j] += __shfl_xor_sync(~0u, s.sum[j], other);
        s.top[j] = fmaxf(s.top[j], __shfl_xor_sync(~0u, s.top[j], other));
      }
    }
    ptx::mbarrier_wait(&shared.row_empty, static_cast<uint32_t>(slot) ^ 1);
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) {
        const int head = head_of(j, lane);
        shared.warp_sum[slot][warp][head] = s.sum[j];
        shared.warp_top[slot][warp][head] = s.top[j];
        if (warp == 0) shared.factor[head] = s.max[j];
      }
    }
    ptx::named_barrier<1, kScoreThreads>();
    HeadStats stats{};
    if (thread < p.live_heads) {
      stats = {shared.factor[thread], 0, kNoMaximum};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        stats.sum += shared.warp_sum[slot][w][thread];
        stats.top = fmaxf(stats.top, shared.warp_top[slot][w][thread]);
      }
      shared.factor[thread] = head_factor(stats, sink, outside);
    }
    ptx::mbarrier_arrive(&shared.row_full);
    if (thread < p.live_heads) store_stats(p, row.token, thread, stats, outside);
  }

  __device__ __forceinline__ void run() {
    const float sink = load_sink(p, thread);
    ComingQuery query;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) query.chunks[b] = {0, 0, 0, 0};
    Row row = row_at(p, 0);
    int length = load_length(p, row);
    query.load(p, row, load_position(p, row.token), thread);
    Row next = row_at(p, 1);
    ComingPosition position = load_position(p, next.token);  // of the next row
    for (int index = 0; row.any(); ++index) {
      length = clamped(p, length);
      const bool outside = query.outside;
      if (length > 0) query.store(p, shared, index & 1, thread);
      query.load(p, next, position, thread);
      const int next_length = load_length(p, next);
      const Row after = row_at(p, index + 2);
      position = load_position(p, after.token);
      Softmax s;
      if (length > 0) tiles(__shfl_sync(~0u, (length + kTileKeys - 1) / kTileKeys, 0), s);
      finish(row, s, sink, outside, index & 1);
      row = next;
      next = after;
      length = next_length;
    }
  }
};

}  // namespace megamla::cuda::prefill::few_heads
