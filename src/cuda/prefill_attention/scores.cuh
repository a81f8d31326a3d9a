// The scores warpgroup: rotation of a row's Q; Q K^T of one key tile after another, softmax with a running maximum, P
// as bf16 to shared memory; at the end of a row its sums, lse and max_logits.
#pragma once

#include "cuda/attention/rotation.cuh"
#include "cuda/attention/softmax.cuh"
#include "cuda/prefill_attention/shared.cuh"
#include "cuda/prefill_attention/stats.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace megamla::cuda::prefill {

// Of a thread's probabilities of a head and tile: where their sum is larger, the maximum rises.
constexpr float kMostSum = 256;

struct Scores {
  const PrefillParams& p;
  Shared& shared;
  int thread;
  int warp;
  int lane;
  int rows[2];  // heads of the tile whose logits this thread has
  Shared::Ring ring;
  uint32_t q_parity = 0;

  // Of the two heads of the thread, in base-2 units.
  struct Softmax {
    float max[2] = {0, 0};                      // the running maximum
    float floor[2] = {kNoMaximum, kNoMaximum};  // 0 once there was a key, from which on `max` counts
    bool wanting = true;                        // of a head of the warp there was none
    float sum[2] = {0, 0};                      // of 2^(logit - max), this thread's part
    float top[2] = {kNoMaximum, kNoMaximum};    // the largest logit of this thread
  };

  __device__ Scores(const PrefillParams& params, Shared& s, int t)
      : p(params), shared(s), thread(t), warp(__shfl_sync(~0u, t / 32, 0)), lane(t % 32) {
    rows[0] = t / 32 * 16 + lane / 4;
    rows[1] = rows[0] + 8;
  }

  // The second half of Q is on its way: its last 64 dims are rotated in place. Thread t looks after every other half
  // block of head t % 64. The values role rotates the row back with the same cosines and sines.
  __device__ __forceinline__ void take_query(int slot) {
    const int head = thread % kTileHeads;
    const int half = thread / kTileHeads;
    const uint32_t q = ptx::shared_address(shared.q) + head * kRowBytes;
    const float4* table = reinterpret_cast<const float4*>(shared.cos_sin[slot]);
    ptx::mbarrier_wait(&shared.q_full[1], q_parity);
    q_parity ^= 1;
    if (p.q_norm != 0) {
      float square = 0;
#pragma unroll 1
      for (int chunk = half * 4; chunk < format::kHeadDim / 8; chunk += 8) {
#pragma unroll
        for (int i = 0; i < 4; ++i) square += sum_of_squares(ptx::load_shared(chunk_address(q, head % 8, chunk + i)));
      }
      shared.q_square[half][head] = square;
    }
    if (shared.rotated[slot] != 0) {
#pragma unroll 1
      for (int i = half * 4; i < half * 4 + 4; ++i) {
        const uint32_t chunk = chunk_address(q, head % 8, format::kNopeDim / 8 + i);
        ptx::store_shared(chunk, rotate_pairs(ptx::load_shared(chunk), table[i], table[format::kRopeDim / 8 + i]));
      }
    }
    ptx::fence_async_proxy();
    ptx::named_barrier<1, kScoreThreads>();
  }

  // What a head's q . k is multiplied by to be a base-2 logit.
  __device__ __forceinline__ float logit_scale(int head) const {
    if (p.q_norm == 0) return p.logit_scale;
    const float mean = (shared.q_square[0][head] + shared.q_square[1][head]) * (1.0F / format::kHeadDim);
    return p.logit_scale * rsqrtf(mean + p.q_norm_eps);
  }

  // Half `half` of Q K^T for the tile that `ring` is at, once its keys are there.
  __device__ __forceinline__ void product(float (&sums)[32], int half) const {
    const ptx::Descriptor q(ptx::shared_address(shared.q) + half * kHalfBytes, 0, 8 * kRowBytes);
    const ptx::Descriptor k(ptx::shared_address(shared.keys[ring.stage]) + half * kHalfBytes, 0, 8 * kRowBytes);
    ptx::fence_async_proxy();  // the producers' copies
    ptx::pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlocks / kHalves; ++i) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint32_t offset = (i / kHalfBlocks * kBlocks / 2 + i % kHalfBlocks) * kBlockBytes + step * 32;
        ptx::wgmma_m64n64k16(sums, q.at(offset), k.at(offset), i + step > 0 ? 1 : half);
      }
    }
    ptx::wgmma_commit();
  }

  // The running maxima of the warp's heads become the largest logits where these are far above; `above`: logits less
  // the maximum. The factor of what was summed before goes to the values role.
  __device__ __forceinline__ void raise_maximum(float (&above)[32], int stage, Softmax& s) const {
    float alpha[2];
    float rise[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = largest_logit(above, r);
      const bool higher = largest > s.floor[r];
      rise[r] = higher ? largest : 0;
      alpha[r] = s.floor[r] == kNoMaximum ? 1 : exp2_approx(-rise[r]);
      if (higher) s.floor[r] = 0;
      s.max[r] += rise[r];
      s.sum[r] *= alpha[r];
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) above[i] -= rise[i / 2 % 2];
    if (lane % 4 == 0) shared.alpha[stage][warp * 8 + lane / 4] = {alpha[0], alpha[1]};
    s.wanting = __any_sync(~0u, s.floor[0] + s.floor[1] < 0);
  }

  // Softmax of a tile whose products are there: P to `to`, where lane l has row l % 16 of the warp's 16 heads. Nobody
  // waits for the tile's largest logits: where one turns out to be far above the maximum, P is worked out once more.
  __device__ __forceinline__ void softmax(float (&sums)[32], const float (&scale)[2], uint2 valid, int stage,
                                          uint32_t to, Softmax& s) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = fmaf(sums[i], scale[i / 2 % 2], -s.max[i / 2 % 2]);
    mask_logits(sums, valid, lane);
    float sum[2];
    bool raise = s.wanting;
    int rescale = 0;
#pragma unroll 1
    do {
      if (raise) {
        raise_maximum(sums, stage, s);
        rescale = 1;
      }
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int begin = 0; begin < 32; begin += 8) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float low = exp2_approx(sums[begin + 2 * i]);
          const float high = exp2_approx(sums[begin + 2 * i + 1]);
          sum[i % 2] += low + high;
          words[i] = bf16x2_round(low, high);
        }
        ptx::store_matrices(to ^ (begin / 4 << 4), words);
        ptx::pin(sum);  // else it is worked out behind the loop
      }
      raise = __any_sync(~0u, fmaxf(sum[0], sum[1]) > kMostSum);
    } while (raise);
    if (lane == 0) shared.rescale[stage][warp] = rescale;
    ptx::fence_async_proxy();
    ptx::mbarrier_arrive(&shared.p_full[stage]);
#pragma unroll
    for (int r = 0; r < 2; ++r) s.sum[r] += sum[r];
    if (p.max_logits == nullptr) return;
#pragma unroll
    for (int i = 0; i < 32; ++i) s.top[i / 2 % 2] = fmaxf(s.top[i / 2 % 2], sums[i] + s.max[i / 2 % 2]);
  }

  // The key tiles of a row. The next tile's product waits until this one's P is out: issued within the softmax it would
  // delay P, and both stages would run empty at the same time.
  template <class Meanwhile>
  __device__ __forceinline__ void tiles(int count, int slot, bool nothing_to_do, Softmax& s, Meanwhile&& meanwhile) {
    float sums[32];
    ptx::mbarrier_wait(&shared.q_full[0], q_parity);
    ptx::mbarrier_wait(&shared.keys_full[ring.stage][0], ring.parity);
    product(sums, 0);
    int half = 1;  // of the tile's product, to be issued
    meanwhile();
    take_query(slot);
    const float scale[2] = {logit_scale(rows[0]), logit_scale(rows[1])};
    // Chunk j of a row lies at j ^ (row % 8); lanes 16 on have the second 8 keys.
    const uint32_t p_row =
        ptx::shared_address(shared.p[0]) + (warp * 16 + lane % 16) * kRowBytes + ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll 1
    for (int left = count - 1; left >= 0; --left) {
      const int stage = ring.stage;
#pragma unroll 1
      for (; half < kHalves; ++half) {
        ptx::mbarrier_wait(&shared.keys_full[stage][half], ring.parity);
        product(sums, half);
      }
      if (left < count - 1 && lane == 0) ptx::mbarrier_arrive(&shared.product_issued);
      const uint2 valid = *reinterpret_cast<const uint2*>(shared.valid[stage]);
      ptx::wgmma_wait<0>();
      ptx::pin(sums);
      if (left == 0) ptx::mbarrier_arrive(&shared.q_empty);
      // Of idle heads whatever is in P stays in their rows.
      if (!nothing_to_do) {
        const uint32_t to = p_row + stage * static_cast<uint32_t>(sizeof shared.p[0]);
        softmax(sums, scale, valid, stage, to, s);
      } else {
        ptx::mbarrier_arrive(&shared.p_full[stage]);
      }
      ring.advance();
      half = 0;
    }
  }

  // The row's sums become the factors of its accumulators.
  __device__ __forceinline__ void finish(const Row& row, Softmax& s, const float (&sink)[2], bool outside,
                                         uint32_t parity) const {
    HeadStats stats[2];
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s.sum[r] += __shfl_xor_sync(~0u, s.sum[r], 1);
      s.sum[r] += __shfl_xor_sync(~0u, s.sum[r], 2);
      if (p.max_logits != nullptr) {
        s.top[r] = fmaxf(s.top[r], __shfl_xor_sync(~0u, s.top[r], 1));
        s.top[r] = fmaxf(s.top[r], __shfl_xor_sync(~0u, s.top[r], 2));
      }
      stats[r] = {s.max[r], s.sum[r], s.top[r]};
      factor[r] = head_factor(stats[r], sink[r], outside);
    }
    ptx::mbarrier_wait(&shared.row_empty, parity ^ 1);
    if (lane % 4 == 0) shared.factor[rows[0]] = factor[0], shared.factor[rows[1]] = factor[1];
    ptx::mbarrier_arrive(&shared.row_full);
    if (p.lse == nullptr && p.max_logits == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = row.first_head + rows[r];
      if (lane % 4 == 0 && head < p.live_heads) store_stats(p, row.token, head, stats[r], outside);
    }
  }

  __device__ __forceinline__ void run() {
    Row row = row_at(p, 0);
    int length = load_length(p, row);
    int table = 0;
    for (int index = 0; row.any(); ++index) {
      length = clamped(p, length);
      Row next;
      int next_length;
      float sink[2];
      const auto look_ahead = [&] {
        next = row_at(p, index + 1);
        next_length = load_length(p, next);
#pragma unroll
        for (int r = 0; r < 2; ++r) sink[r] = load_sink(p, row.first_head + rows[r]);
      };
      Softmax s;
      bool outside = false;
      if (length > 0) {
        tiles((length + kTileKeys - 1) / kTileKeys, table, idle(p, row, warp), s, look_ahead);
        outside = shared.outside[table] != 0;
        table = table == Shared::kTables - 1 ? 0 : table + 1;
      } else {
        look_ahead();
      }
      finish(row, s, sink, outside, index & 1);
      row = next;
      length = next_length;
    }
  }
};

}  // namespace megamla::cuda::prefill
