// The scores warpgroup: Q K^T of one key tile after another, softmax with a running maximum, P as bf16 to shared
// memory; what the values role needs at the end of a row.
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/decode_attention/output.cuh"
#include "cuda/decode_attention/query.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_registers.cuh"

namespace megamla::cuda {

// The running maximum of a head is an earlier tile's: most tiles need no maximum, and leave the accumulators as they
// are. It is sought only where probabilities show that it is needed: where they add up to more than kMostSum, in one
// thread's 16 of a tile; and where one of them is above 1 and a large share of all so far. The largest probability of a
// row is 1 otherwise, which bf16 holds exactly: one that is not has twice the rounding error of those below 1, too much
// for a row that a few keys decide.
constexpr float kMostSum = 4096;
constexpr float kLargeShare = 1 / 3.5F;

struct Scores {
  const DecodeParams& p;
  Shared& shared;
  int thread;
  Ring ring;
  Query query;
  float scale[2] = {0, 0};  // what q . k of a head is multiplied by to be a base-2 logit
  bool fetched = false;     // half 0 of the coming row's Q is on its way

  // The heads of the tile whose logits this thread has: head() and head() + 8.
  __device__ __forceinline__ int head() const { return thread / 32 * 16 + thread % 32 / 4; }

  // Registers are scarce in softmax: which thread this is is read anew after it.
  __device__ __forceinline__ static int thread_of_role() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread - kValueThreads;
  }

  __device__ Scores(const DecodeParams& params, Shared& s, int t) : p(params), shared(s), thread(t) {}

  __device__ __forceinline__ void meet() const { ptx::named_barrier<1, kScoreThreads>(); }

  // What softmax needs beside the logits, made ready while they are computed.
  struct Tile {
    uint2 valid;
    uint32_t p;  // where this lane's row of probabilities goes
  };
  __device__ __forceinline__ Tile prepare_tile() const {
    Tile tile{*reinterpret_cast<const uint2*>(shared.valid[ring.stage()]), 0};
    // As stmatrix takes them: lane l gives a row of matrix l / 8, which are those of heads 0 .. 7 and 8 .. 15 of the
    // warp at one chunk of 8 keys, then at the next. Chunk j of a row lies at j ^ (row % 8).
    const int lane = thread % 32;
    tile.p = ptx::shared_address(shared.p[ring.stage()]) +
             (thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8) * kRowBytes + ((lane / 16 ^ lane % 8) << 4);
    ptx::forget(tile.p), ptx::forget(tile.valid.x), ptx::forget(tile.valid.y);
    if (thread % 4 == 0) shared.alpha[ring.stage()][head()] = shared.alpha[ring.stage()][head() + 8] = 1;
    return tile;
  }

  __device__ __forceinline__ Tile multiply(float (&logits)[32]) const {
    uint32_t q_address = ptx::shared_address(shared.q);
    ptx::forget(q_address);  // its descriptors
    const ptx::Descriptor q(q_address, 0, 8 * kRowBytes);
    const ptx::Descriptor k(ptx::shared_address(shared.keys[ring.stage()]), 0, 8 * kRowBytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::mbarrier_wait(&shared.barriers.keys_full[ring.stage()][part], ring.parity());
      if (kReadersFence) ptx::fence_async_proxy();
      if (part == 0) trace(Trace::kKeys);
      ptx::wgmma_fence();
#pragma unroll
      for (int block = part * kPartBlocks; block < (part + 1) * kPartBlocks; ++block) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const uint32_t offset = block * kBlockBytes + step * 32;
          if (block < kQueryBlocks) {
            ptx::wgmma_m64n64k16(logits, q.at(offset), k.at(offset), offset != 0);
          } else {
            ptx::wgmma_registers<kTileKeys>(logits, query.words[(block - kQueryBlocks) * 4 + step], k.at(offset));
          }
        }
      }
      ptx::wgmma_commit();
    }
    const Tile tile = prepare_tile();
    ptx::wgmma_wait<0>();
    ptx::pin(logits);
    return tile;
  }

  // Probabilities: unrounded into the tile's sum, rounded into shared memory, and the largest.
  __device__ __forceinline__ void exponentiate(const float (&logits)[32], const float (&m)[2], uint32_t at,
                                               float (&sum)[2], float (&most)[2]) const {
    uint32_t largest[2] = {0, 0};
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t p_words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        const float low = exp2_approx(fmaf(logits[pair * 8 + i * 2], scale[r], -m[r]));
        const float high = exp2_approx(fmaf(logits[pair * 8 + i * 2 + 1], scale[r], -m[r]));
        sum[r] += low + high;
        p_words[i] = bf16x2_round(low, high);
        largest[r] = bf16x2_max(largest[r], p_words[i]);
      }
      ptx::store_matrices(at ^ (pair << 5), p_words);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(bf16x2_low(largest[r]), bf16x2_high(largest[r]));
  }

  // Whether the maximum must be sought: the threads' own sums tell whether it may be, the four lanes of a head
  // together.
  __device__ __forceinline__ static bool any_too_large(const float (&most)[2], const float (&tile_sum)[2],
                                                       const float (&sum)[2]) {
    const bool most_sum = fmaxf(tile_sum[0], tile_sum[1]) > kMostSum;
    bool large[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) large[r] = most[r] > fmaxf(1, kLargeShare * (sum[r] + tile_sum[r]));
    if (__any_sync(~0u, most_sum || large[0] || large[1]) == 0) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r] + tile_sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      large[r] = large[r] && most[r] > kLargeShare * total;
    }
    return __any_sync(~0u, most_sum || large[0] || large[1]) != 0;
  }

  // The running maximum of a head whose probabilities have become large moves to the tile's, and what was summed before
  // with it.
  __device__ __forceinline__ void follow_maximum(const float (&logits)[32], float (&m)[2], float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = largest_logit(logits, r) * scale[r];
      const float next = fmaxf(largest, m[r]);
      const float alpha = exp2_approx(m[r] - next);
      m[r] = next;
      sum[r] *= alpha;
      const int t = thread_of_role();
      if (t % 4 == 0) shared.alpha[ring.stage()][t / 32 * 16 + t % 32 / 4 + r * 8] = alpha;
    }
  }

  // With the maximum of the tiles before; where that does not do, it is sought and the probabilities are computed
  // again.
  __device__ __forceinline__ void softmax(float (&logits)[32], float (&m)[2], float (&sum)[2], const Tile& tile,
                                          bool first) const {
    mask_logits(logits, tile.valid, ptx::lane_id());
    float tile_sum[2];
    for (int follow = first;;) {
      ptx::forget(follow);  // one copy of the code
      if (follow != 0) follow_maximum(logits, m, sum);
      float most[2];
      exponentiate(logits, m, tile.p, tile_sum, most);
      if (follow != 0) break;
      follow = any_too_large(most, tile_sum, sum);
      if (follow == 0) break;
    }
    sum[0] += tile_sum[0], sum[1] += tile_sum[1];
    ptx::fence_async_proxy();
  }

  // The row's Q to where multiply finds it.
  __device__ __forceinline__ void prepare_query(const Row& row, int parity, const float* cos_sin) {
    const int c = thread % 4;
    if (cos_sin != nullptr && thread < format::kRopeDim / 4) {
      ptx::copy_16_async(ptx::shared_address(&shared.rotation[parity][thread * 4]), cos_sin + thread * 4, true);
    }
    ptx::commit_copies();
    float squares[2] = {0, 0};
    if (p.q_norm != 0) query.square(squares);
    if (p.q_negative != 0) query.negate();
    query.arrange();
    meet();  // all warps are done with the last row's Q
    query.store(shared, head(), c);
    query.fetch(p, row, head(), c, 1);
    ptx::wait_copies<0>();
    ptx::fence_async_proxy();
    meet();
    if (p.q_norm != 0) query.square(squares);
    if (p.q_negative != 0) query.negate();
    if (cos_sin != nullptr) query.rotate(ptx::shared_address(shared.rotation[parity]), c);
    query.arrange();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale[r] = p.logit_scale;
      if (p.q_norm == 0) continue;
      squares[r] += __shfl_xor_sync(~0u, squares[r], 1);
      squares[r] += __shfl_xor_sync(~0u, squares[r], 2);
      scale[r] *= rsqrtf(squares[r] * (1.0F / format::kHeadDim) + p.q_norm_eps);
    }
  }

  __device__ __forceinline__ void publish(const Row& row, bool outside, const float (&m)[2], float (&sum)[2]) const {
    if (thread == 0) shared.outside = outside ? 1 : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      if (thread % 4 != 0) continue;
      if (row.parts > 1) {
        shared.row_max[head() + r * 8] = m[r];
        shared.row_sum[head() + r * 8] = sum[r];
      } else {
        const int h = row.first_head + head() + r * 8;
        shared.factor[head() + r * 8] = output_factor(p, outside, h, shared.sink[h], m[r], sum[r]);
        store_lse(p, row.token, outside, h, m[r], sum[r]);
      }
    }
  }

  // To all blocks of the cluster: a head's four lanes take turns.
  __device__ __forceinline__ void send_sums(const Row& row, const float (&m)[2], const float (&sum)[2]) const {
    ptx::mbarrier_wait(&shared.barriers.places_full, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const uint32_t place = ptx::shared_address(&merge_stats(shared).of[row.rank][head() + r * 8]);
      const uint32_t barrier = ptx::shared_address(&shared.barriers.sums_full);
#pragma unroll 1
      for (int to = thread % 4; to < row.ranks; to += 4) {
        ptx::store_cluster_async(ptx::cluster_address(place, to), uint2{__float_as_uint(m[r]), __float_as_uint(total)},
                                 ptx::cluster_address(barrier, to));
      }
    }
  }

  // The weights of a cluster's partial results, one thread a head.
  __device__ __forceinline__ void weigh(const Row& row, bool outside) const {
    ptx::mbarrier_wait(&shared.barriers.sums_full, 0);
    if (thread < kTileHeads) {
      MergeStats& stats = merge_stats(shared);
      float m = kNoMaximum;
#pragma unroll 4
      for (int other = 0; other < row.ranks; ++other) m = fmaxf(m, stats.of[other][thread].x);
      float sum = 0;
#pragma unroll 4
      for (int other = 0; other < row.ranks; ++other) {
        const float2 of_other = stats.of[other][thread];
        const float weight = exp2_approx(of_other.x - m);
        sum += weight * of_other.y;
        stats.of[other][thread].x = weight;
      }
      const int h = row.first_head + thread;
      shared.factor[thread] = output_factor(p, outside, h, shared.sink[h], m, sum);
      if (row.rank == 0) store_lse(p, row.token, outside, h, m, sum);
    }
    ptx::mbarrier_arrive(&shared.barriers.stats_full);
  }

  // Calls to the L2 what the first row begins with, while the kernel before this one may still run.
  __device__ __forceinline__ void call_first_row() const {
    const Row row = row_at(p, shared, 0);
    if (!row.any()) return;
    if (thread < 2 && p.keys[thread].lens != nullptr) {
      ptx::prefetch_l2(p.keys[thread].lens + row.token * p.keys[thread].lens_stride);
    } else if (thread == 2 && p.cos_sin != nullptr) {
      ptx::prefetch_l2(static_cast<const uint8_t*>(p.positions) +
                       row.token * p.positions_stride * (p.positions_64 != 0 ? 8 : 4));
    }
    Query::prefetch(p, row, thread);
  }

  // Finds out which row is the index-th, and asks for its lengths, its position and its Q.
  __device__ __forceinline__ void request(int index) const {
    const Row row = row_at(p, shared, index);
    if (thread == 0) shared.rows[index % kRows] = row;
    ComingRow& coming = shared.coming[index & 1];
    if (row.any() && thread < 2) {
      const DecodeKeys& keys = p.keys[thread];
      if (keys.lens == nullptr) {
        coming.length[thread] = keys.width;
      } else {
        ptx::copy_4_async(ptx::shared_address(&coming.length[thread]), keys.lens + row.token * keys.lens_stride, true);
      }
    } else if (row.any() && thread == 2 && p.cos_sin != nullptr) {
      const int64_t at = row.token * p.positions_stride;
      if (p.positions_64 != 0) {
        ptx::copy_8_async(ptx::shared_address(&coming.position.wide), static_cast<const int64_t*>(p.positions) + at,
                          true);
      } else {
        ptx::copy_4_async(ptx::shared_address(&coming.position.narrow), static_cast<const int32_t*>(p.positions) + at,
                          true);
      }
    }
    ptx::commit_copies();
    if (row.any() && index > 0) Query::prefetch(p, row, thread);
  }

  // How many tiles of the index-th row are this block's, when that has come; the values role is told.
  __device__ __forceinline__ int begin_row(int index) const {
    ptx::wait_copies<0>();
    meet();
    const Row& row = shared.rows[index % kRows];
    const int tiles = __shfl_sync(~0u, row.any() ? live_tiles(p, row, shared.coming[index & 1]) : 0, 0);
    if (thread == 0) shared.tiles[index & 1] = tiles;
    ptx::mbarrier_arrive(&shared.barriers.stats_full);
    trace(Trace::kRow);
    return tiles;
  }

  __device__ __forceinline__ void attend(int tiles, bool live, int index, float (&m)[2], float (&sum)[2]) {
    fetched = false;
#pragma unroll 1
    for (bool first = true; tiles > 0; --tiles, first = false) {
      thread = thread_of_role();
      float logits[32];
      const Tile tile = multiply(logits);
      trace(Trace::kScored);
      if (tiles == 1) {  // Q has done its part
        meet();          // the next row is known to all
        const Row& next = shared.rows[(index + 1) % kRows];
        fetched = next.any();
        if (fetched) query.fetch(p, next, head(), thread % 4, 0);
      }
      if (live) softmax(logits, m, sum, tile, first);
      ptx::mbarrier_arrive(&shared.barriers.p_full[ring.stage()]);
      ring.advance();
      trace(Trace::kProbabilities);
    }
  }

  // A turn ends one row and begins the next.
  __device__ __forceinline__ void run() {
    int tiles = 0;
    // Waited for with the first row's lengths.
    if (p.sink != nullptr) {
      ptx::copy_4_async(ptx::shared_address(&shared.sink[thread]), p.sink + thread * p.sink_stride,
                        thread < p.live_heads);
    }
#pragma unroll 1
    for (int index = -1;; ++index) {
      request(index + 1);
      if (index >= 0) {
        const Row& row = shared.rows[index % kRows];
        const bool live = row.first_head + __shfl_sync(~0u, head(), 0) < p.live_heads;  // the warp has a head
        float m[2] = {kNoMaximum, kNoMaximum};
        float sum[2] = {0, 0};
        attend(tiles, live, index, m, sum);
        ptx::forget(index);
        thread = thread_of_role();
        const bool outside = rotation_of(p, shared.coming[index & 1].position).outside;
        if (row.ranks > 1) {  // the last one
          send_sums(row, m, sum);
          ptx::mbarrier_wait(&shared.barriers.stats_empty, index & 1);
          weigh(row, outside);
          trace(Trace::kPublished);
          return;
        }
        ptx::mbarrier_wait(&shared.barriers.stats_empty, index & 1);  // the row before has ended
        publish(row, outside, m, sum);
        trace(Trace::kPublished);
      }
      if (!fetched) {
        meet();  // the row is known to all
        const Row& next = shared.rows[(index + 1) % kRows];
        if (next.any()) query.fetch(p, next, head(), thread % 4, 0);
      }
      tiles = begin_row(index + 1);
      const Row& row = shared.rows[(index + 1) % kRows];
      if (!row.any()) return;
      const int parity = (index + 1) & 1;
      if (tiles > 0) prepare_query(row, parity, rotation_of(p, shared.coming[parity].position).cos_sin);
      trace(Trace::kQuery);
    }
  }
};

}  // namespace megamla::cuda
