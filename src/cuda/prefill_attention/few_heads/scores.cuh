// The scores warpgroup: K Q^T of one key tile after another, softmax with a running maximum, P as bf16 to shared
// memory; at the end of a row its sums, lse and max_logits.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/attention/softmax.cuh"
#include "cuda/prefill_attention/few_heads/shared.cuh"
#include "cuda/prefill_attention/stats.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda::prefill::few_heads {

// Of a thread's probabilities of a head and tile: where their sum is larger, the maximum rises.
constexpr float kMostSum = 256;

struct Scores {
  const PrefillParams& p;
  Shared& shared;
  int thread;
  int warp;
  int lane;
  Shared::Ring ring;
  uint32_t q_parity = 0;

  // Of the thread's heads, in base-2 units.
  struct Softmax {
    float max[kThreadHeads];    // the running maximum, the same in all warps
    float floor[kThreadHeads];  // kNoMaximum, then 0: there was a key, `max` counts
    float sum[kThreadHeads];    // of 2^(logit - max), this thread's part
    float top[kThreadHeads];    // the largest logit of this thread
    int wanting = 1;            // of a head there was no key
    __device__ __forceinline__ Softmax() {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) max[j] = sum[j] = 0, floor[j] = top[j] = kNoMaximum;
    }
  };

  __device__ Scores(const PrefillParams& params, Shared& s, int t)
      : p(params), shared(s), thread(t), warp(__shfl_sync(~0u, t / 32, 0)), lane(t % 32) {}

  // Q is on its way: its last 64 dims are rotated in place. Thread t looks after chunk t / 16 of each block of 64 dims
  // of head t % 16. The values role rotates the row back with the same cosines and sines.
  __device__ __forceinline__ void take_query(int slot) {
    const int head = thread % kHeads;
    const int chunk = thread / kHeads;
    const uint32_t at = ptx::shared_address(shared.q) + head * kRowBytes + ((chunk ^ head % 8) << 4);
    const float4* table = reinterpret_cast<const float4*>(shared.cos_sin[slot]);
#pragma unroll
    for (uint64_t& full : shared.q_full) ptx::mbarrier_wait(&full, q_parity);
    q_parity ^= 1;
    if (p.q_norm != 0) {
      float square = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) square += sum_of_squares(ptx::load_shared(at + b * Shared::kQueryBlockBytes));
      shared.q_square[chunk][head] = square;
    }
    if (shared.rotated[slot] != 0) {
      const uint32_t rotated = at + (kBlocks - 1) * Shared::kQueryBlockBytes;
      ptx::store_shared(rotated,
                        rotate_pairs(ptx::load_shared(rotated), table[chunk], table[format::kRopeDim / 8 + chunk]));
    }
    ptx::fence_async_proxy();
    ptx::named_barrier<1, kScoreThreads>();
  }

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

  // The running maxima become the tile's largest logits where these are higher; `above`: logits less the maximum. The
  // factor of what was summed before goes to the values role.
  __device__ __forceinline__ void raise_maximum(float (&above)[8], int stage, Softmax& s) const {
    float largest[kThreadHeads];
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      largest[j] = kNoMaximum;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (accumulator_head(i) == j) largest[j] = fmaxf(largest[j], above[i]);
      }
#pragma unroll
      for (int other = 4; other < 32; other *= 2)
        largest[j] = fmaxf(largest[j], __shfl_xor_sync(~0u, largest[j], other));
    }
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) shared.warp_max[warp][head_of(j, lane)] = largest[j];
    }
    ptx::named_barrier<1, kScoreThreads>();
    float rise[kThreadHeads];
    float lowest = 0;
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) {
      const int head = head_of(j, lane);
      float x = shared.warp_max[0][head];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) x = fmaxf(x, shared.warp_max[w][head]);
      const bool higher = x > s.floor[j];
      rise[j] = higher ? x : 0;
      const float alpha = s.floor[j] == kNoMaximum ? 1 : exp2_approx(-rise[j]);
      if (higher) s.floor[j] = 0;
      lowest = fminf(lowest, s.floor[j]);
      s.max[j] += rise[j];
      s.sum[j] *= alpha;
      if (thread < 4) shared.alpha[stage][head] = alpha;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) above[i] -= rise[accumulator_head(i)];
    s.wanting = uniform(__any_sync(~0u, lowest < 0));
  }

  // Without the shuffle ptxas takes a branch for a divergent one and serialises the products that are under way.
  static __device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

  // P = 2^above as bf16, and its sums. P lies as [head][key], 128 bytes a head, swizzled; `to`: where lane l has head
  // l / 16 * 8 + l % 8 and, of the warp's 16 keys, the second 8 where l / 8 is odd. True, for all threads of the role:
  // somebody's logits are far above the maximum, and P is of no use.
  __device__ __forceinline__ bool store_probabilities(const float (&above)[8], uint32_t to,
                                                      float (&sum)[kThreadHeads]) const {
    float e[8];
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 8; ++i) e[i] = exp2_approx(above[i]);
#pragma unroll
    for (int i = 0; i < 8; i += 2) words[i / 2] = bf16x2_round(e[i], e[i + 1]);
    ptx::store_matrices_transposed(to, words);
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) sum[j] = e[j / 2 * 4 + j % 2] + e[j / 2 * 4 + j % 2 + 2];
    const bool far_above = fmaxf(fmaxf(sum[0], sum[1]), fmaxf(sum[2], sum[3])) > kMostSum;
    return !ptx::named_barrier_all<1, kScoreThreads>(!far_above);
  }

  // The key tiles of a row. A tile's product is issued within the softmax of the tile before it, so that the tensor
  // cores need not wait for it. Nobody waits for the tile's largest logits: where one turns out to be far above the
  // maximum, P is worked out once more.
  __device__ __forceinline__ void tiles(int count, Softmax& s) {
    const int p_head = lane / 16 * 8 + lane % 8;
    const uint32_t p_row =
        ptx::shared_address(shared.p[0]) + p_head * kRowBytes + ((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
    float sums[8];
    product<0>(sums);
    product<1>(sums);
    float scale[kThreadHeads];
#pragma unroll
    for (int j = 0; j < kThreadHeads; ++j) scale[j] = logit_scale(head_of(j, lane));
#pragma unroll 1
    for (int left = count - 1; left >= 0; --left) {
      const int stage = ring.stage;
      const uint32_t valid = shared.valid[stage][warp];
      ptx::wgmma_wait<0>();
      ptx::pin(sums);
      if (left == 0) ptx::mbarrier_arrive(&shared.q_empty);
      float above[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) above[i] = fmaf(sums[i], scale[accumulator_head(i)], -s.max[accumulator_head(i)]);
      if (uniform(valid != 0xffff)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if ((valid >> (lane / 4 + 8 * accumulator_half(i)) & 1u) == 0) above[i] = __int_as_float(0xff800000);
        }
      }
      const int rises = s.wanting;
      if (rises != 0) raise_maximum(above, stage, s);
      ring.advance();
      if (left > 0) product<0>(sums);
      float sum[kThreadHeads];
      const uint32_t to = p_row + stage * static_cast<uint32_t>(sizeof shared.p[0]);
      int far_above = uniform(store_probabilities(above, to, sum));
      if (left > 0) product<1>(sums);
      if (thread == 0) shared.rescale[stage] = rises | far_above;
#pragma unroll 1
      while (far_above != 0) {
        raise_maximum(above, stage, s);
        far_above = uniform(store_probabilities(above, to, sum));
      }
      ptx::fence_async_proxy();
      ptx::mbarrier_arrive(&shared.p_full[stage]);
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) s.sum[j] += sum[j];
      if (p.max_logits == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int j = accumulator_head(i);
        s.top[j] = fmaxf(s.top[j], above[i] + s.max[j]);
      }
    }
  }

  // The row's sums become the factors of its accumulators. `sink`: of head `thread`.
  __device__ __forceinline__ void finish(const Row& row, Softmax& s, float sink, bool outside, int slot) const {
#pragma unroll
    for (int other = 4; other < 32; other *= 2) {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) {
        s.sum[j] += __shfl_xor_sync(~0u, s.sum[j], other);
        if (p.max_logits != nullptr) s.top[j] = fmaxf(s.top[j], __shfl_xor_sync(~0u, s.top[j], other));
      }
    }
    ptx::mbarrier_wait(&shared.row_empty, static_cast<uint32_t>(slot) ^ 1);
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < kThreadHeads; ++j) {
        const int head = head_of(j, lane);
        shared.warp_sum[warp][head] = s.sum[j];
        shared.warp_top[warp][head] = s.top[j];
        if (warp == 0) shared.factor[head] = s.max[j];
      }
    }
    ptx::named_barrier<1, kScoreThreads>();
    HeadStats stats{};
    if (thread < p.live_heads) {
      stats = {shared.factor[thread], 0, kNoMaximum};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        stats.sum += shared.warp_sum[w][thread];
        stats.top = fmaxf(stats.top, shared.warp_top[w][thread]);
      }
      shared.factor[thread] = head_factor(stats, sink, outside);
    }
    ptx::mbarrier_arrive(&shared.row_full);
    if (thread < p.live_heads) store_stats(p, row.token, thread, stats, outside);
  }

  __device__ __forceinline__ void run() {
    const float sink = load_sink(p, thread);
    Row row = row_at(p, 0);
    int length = load_length(p, row);
    int table = 0;
    for (int index = 0; row.any(); ++index) {
      length = clamped(p, length);
      const Row next = row_at(p, index + 1);
      const int next_length = load_length(p, next);
      Softmax s;
      bool outside = false;
      if (length > 0) {
        take_query(table);
        tiles(__shfl_sync(~0u, (length + kTileKeys - 1) / kTileKeys, 0), s);
        outside = shared.outside[table] != 0;
        table = table == Shared::kTables - 1 ? 0 : table + 1;
      }
      finish(row, s, sink, outside, index & 1);
      row = next;
      length = next_length;
    }
  }
};

}  // namespace megamla::cuda::prefill::few_heads
