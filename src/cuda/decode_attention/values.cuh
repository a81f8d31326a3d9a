// The values warpgroups: O += P V, each for 256 of the 512 dims, and the end of a row.
#pragma once

#include "cuda/decode_attention/scores.cuh"

namespace megamla::cuda {

constexpr int kAccumulators = 128;  // 64 heads x 256 dims over the 128 threads of a warpgroup

struct Values {
  const DecodeParams& p;
  Shared& shared;
  int thread;     // of 256
  int warpgroup;  // 0, 1
  Ring ring;

  // The heads of the tile whose accumulators this thread has: head() and head() + 8.
  __device__ __forceinline__ int head() const { return thread % 128 / 32 * 16 + thread % 32 / 4; }

  __device__ Values(const DecodeParams& params, Shared& s, int t)
      : p(params), shared(s), thread(t), warpgroup(__shfl_sync(~0u, t / 128, 0)) {}

  // The row's first tile does not care what the accumulators are.
  __device__ __forceinline__ void tile(float (&o)[kAccumulators], bool first) {
    ptx::mbarrier_wait(&shared.barriers.p_full[ring.stage()], ring.parity());
    if (kReadersFence) ptx::fence_async_proxy();
    trace(Trace::kTaken);
    const float alpha[2] = {shared.alpha[ring.stage()][head()], shared.alpha[ring.stage()][head() + 8]};
    if (!first && __any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) o[i] *= alpha[i / 2 % 2];
    }
    const ptx::Descriptor probabilities(ptx::shared_address(shared.p[ring.stage()]), 0, 8 * kRowBytes);
    const ptx::Descriptor v(ptx::shared_address(shared.keys[ring.stage()]) + warpgroup * (kBlocks / 2) * kBlockBytes,
                            kBlockBytes, 8 * kRowBytes);
    ptx::pin(o);
    ptx::wgmma_fence();
    // The stage is given back as it is done with, 128 dims after 128.
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      ptx::wgmma_m64n128k16_mn<0>(o, probabilities.at(step * 32), v.at(step * 16 * kRowBytes), step > 0 || !first);
    }
    ptx::wgmma_commit();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      ptx::wgmma_m64n128k16_mn<64>(o, probabilities.at(step * 32), v.at(step * 16 * kRowBytes + 2 * kBlockBytes),
                                   step > 0 || !first);
    }
    ptx::wgmma_commit();
    uint64_t* empty = &shared.barriers.keys_empty[ring.stage()][warpgroup * 2];
    ptx::wgmma_wait<1>();
    ptx::mbarrier_arrive(empty);
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::mbarrier_arrive(empty + 1);
    ring.advance();
    trace(Trace::kSummed);
  }

  // Accumulators of one group and head head() + r * 8, in the order of their dims.
  __device__ __forceinline__ static void dims_of(const float* o, int r, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = o[i * 4 + r * 2], x[4 + i] = o[i * 4 + r * 2 + 1];
  }

  __device__ __forceinline__ bool any_live(int first_head) const {
    return first_head + __shfl_sync(~0u, head(), 0) < p.live_heads;
  }

  __device__ __forceinline__ static void put_dims(float* o, int r, const float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i * 4 + r * 2] = x[i], o[i * 4 + r * 2 + 1] = x[4 + i];
  }
  // Groups 14 and 15, of both heads, by the row's table. Partial sums may be rotated like whole ones.
  __device__ __forceinline__ void rotate(float (&o)[kAccumulators], uint32_t cos_sin) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* group = o + kAccumulators - 32 + k * 16;
        float x[8];
        dims_of(group, r, x);
        float4 cosines, sines;
        load_rotation(cos_sin, k * 4 + thread % 4, cosines, sines);
        rotate_back(x, cosines, sines);
        put_dims(group, r, x);
      }
    }
  }

  // kTogether groups at a time, after which the accumulators move down by as many: straight code for all eight would be
  // fetched anew for every row.
  template <int kTogether, class Store>
  __device__ __forceinline__ void for_groups(float (&o)[kAccumulators], Store&& store) const {
#pragma unroll 1
    for (int g = 0;; g += kTogether) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) store(o + k * 16, warpgroup * 8 + g + k);
      if (g + kTogether >= 8) return;
#pragma unroll
      for (int i = 0; i < kAccumulators - 16 * kTogether; ++i) o[i] = o[i + 16 * kTogether];
    }
  }

  __device__ __forceinline__ void store_group_pair(const PairPlace& place, const float* o,
                                                   const OutputFactor (&factor)[2], int first) const {
    const PairPlace second = eight_heads_on(p, place, first + 8 < p.live_heads);
    float x[8];
    dims_of(o, 0, x);
    store_pair({place.data, place.scale, first < p.live_heads}, x, factor[0], thread % 4);
    dims_of(o, 1, x);
    store_pair(second, x, factor[1], thread % 4);
  }
  __device__ __forceinline__ void store_group_plain(int token, const float* o, const OutputFactor (&factor)[2],
                                                    int first, int group) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x[8];
      dims_of(o, r, x);
      store_plain(p, token, first + r * 8, x, factor[r], group * 32 + thread % 4 * 8);
    }
  }

  __device__ __forceinline__ void finish(int token, int first_head, float (&o)[kAccumulators]) const {
    const OutputFactor factor[2] = {OutputFactor(shared.factor[head()]), OutputFactor(shared.factor[head() + 8])};
    const int first = first_head + head();
    if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      PairPlace place = pair_place(p, token, first, warpgroup * 8, thread % 4);
      for_groups<4>(o, [&](const float* group_o, int) {
        store_group_pair(place, group_o, factor, first);
        to_next_group(p, place);
      });
    } else {
      for_groups<4>(o,
                    [&](const float* group_o, int group) { store_group_plain(token, group_o, factor, first, group); });
    }
  }

  // What becomes e4m3 goes to other blocks as bf16: half the bytes, of what takes longest there.
  template <bool kPacked>
  static constexpr int kVectors = kPacked ? 2 : 4;  // 16 bytes, of a group's 16 accumulators
  template <bool kPacked>
  static constexpr int64_t kPartBytes = 8 * kVectors<kPacked>* kValueThreads * 16;
  template <bool kPacked>
  __device__ __forceinline__ static uint4 vector_of(const float (&o)[kAccumulators], int i) {
    if (kPacked) {
      const float* x = o + i * 8;
      return {bf16x2_round(x[0], x[1]), bf16x2_round(x[2], x[3]), bf16x2_round(x[4], x[5]), bf16x2_round(x[6], x[7])};
    }
    const float* x = o + i * 4;
    return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
  }
  // v += a part's accumulators of a group, weighted by head.
  __device__ __forceinline__ static void add_partial(const uint4 (&u)[4], const float (&weight)[2], float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i * 4] += weight[0] * __uint_as_float(u[i].x);
      v[i * 4 + 1] += weight[0] * __uint_as_float(u[i].y);
      v[i * 4 + 2] += weight[1] * __uint_as_float(u[i].z);
      v[i * 4 + 3] += weight[1] * __uint_as_float(u[i].w);
    }
  }
  __device__ __forceinline__ static void add_partial(const uint4 (&u)[2], const float (&weight)[2], float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t words[4] = {u[i].x, u[i].y, u[i].z, u[i].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        v[i * 8 + w * 2] += weight[w % 2] * bf16x2_low(words[w]);
        v[i * 8 + w * 2 + 1] += weight[w % 2] * bf16x2_high(words[w]);
      }
    }
  }

  // A unit: 16 bytes of every lane, and so on.
  template <bool kPacked>
  static constexpr int kUnitBytes = kVectors<kPacked> * 32 * 16;

  // Where a unit's bytes from a block lie: place `place` from `keys` on, or behind the statistics.
  template <bool kPacked>
  __device__ __forceinline__ uint32_t unit_at(uint32_t keys, int place) const {
    const uint32_t behind = ptx::shared_address(shared.raw) + static_cast<uint32_t>(sizeof(MergeStats)) -
                            kUnitsInKeys * kUnitBytes<kPacked>;
    return (place < kUnitsInKeys ? keys : behind) + place * kUnitBytes<kPacked>;
  }

  // This warp's units to the blocks that merge them; a lane finds out where one of them goes.
  template <bool kPacked>
  __device__ __forceinline__ void push_units(const Row& row, const float (&o)[kAccumulators]) const {
    ptx::mbarrier_wait(&shared.barriers.places_full, 0);
    const int unit = Units::first_of(thread / 32) + thread % 8;
    const int turn = in_turns(p, unit) * row.ranks;
    const int to = unit - turn;
    const uint32_t at = ptx::cluster_address(unit_at<kPacked>(shared.unit_places[to], turn + row.rank), to);
    const uint32_t barrier = ptx::cluster_address(ptx::shared_address(&shared.barriers.units_full), to);
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const uint32_t lane_at = __shfl_sync(~0u, at, g) + thread % 32 * 16;
      const uint32_t unit_barrier = __shfl_sync(~0u, barrier, g);
#pragma unroll
      for (int i = 0; i < kVectors<kPacked>; ++i) {
        ptx::store_cluster_async(lane_at + i * 512, vector_of<kPacked>(o, g * kVectors<kPacked> + i), unit_barrier);
      }
    }
  }

  // This block's units, one a warp at a time: block after block.
  template <bool kPacked>
  __device__ __forceinline__ void merge_units(const Row& row, const Units& units) const {
    const MergeStats& stats = merge_stats(shared);
    const uint32_t keys = shared.unit_places[row.rank];
    const int lane = thread % 32;
    const int ranks = row.ranks;
#pragma unroll 1
    for (int unit = thread / 32 * ranks + row.rank; unit < units.count(); unit += kValueThreads / 32 * ranks) {
      const int warp = Units::warp_of(unit);
      const int h = warp % 4 * 16 + lane / 4;
      float v[16] = {};
#pragma unroll 1
      for (int from = 0; from < ranks; ++from) {
        const uint32_t at = unit_at<kPacked>(keys, unit - row.rank + from) + lane * 16;
        uint4 u[kVectors<kPacked>];
#pragma unroll
        for (int i = 0; i < kVectors<kPacked>; ++i) u[i] = ptx::load_shared(at + i * 512);
        const float weight[2] = {stats.of[from][h].x, stats.of[from][h + 8].x};
        add_partial(u, weight, v);
      }
      const OutputFactor factor[2] = {OutputFactor(shared.factor[h]), OutputFactor(shared.factor[h + 8])};
      const int group = warp / 4 * 8 + unit % 8;
      const int first = row.first_head + h;
      if (kPacked) {
        store_group_pair(pair_place(p, row.token, first, group, thread % 4), v, factor, first);
      } else {
        store_group_plain(row.token, v, factor, first, group);
      }
    }
  }

  // The end of a row that the blocks of a cluster share; `weighed` is the phase of stats_full that brings the weights.
  template <bool kPacked>
  __device__ __forceinline__ void finish_shared(const Row& row, const float (&o)[kAccumulators],
                                                uint32_t weighed) const {
    const Units units(p, row.first_head);
    if (units.has(thread / 32)) push_units<kPacked>(row, o);
    ptx::mbarrier_wait(&shared.barriers.stats_full, weighed);
    ptx::mbarrier_wait(&shared.barriers.units_full, 0);
    trace(Trace::kMet);
    merge_units<kPacked>(row, units);
    trace(Trace::kMerged);
  }

  // One thread: whether a row's part that has been left is the last to come.
  __device__ __forceinline__ bool is_last(const Row& row) const {
    auto* ticket = reinterpret_cast<unsigned long long*>(p.parts.tickets + row.home);
    unsigned long long seen = *static_cast<volatile unsigned long long*>(ticket);
    unsigned long long expected;
    bool last;
    do {
      expected = seen;
      const unsigned long long there = expected >> 8 == p.parts.launch ? (expected & 0xff) + 1 : 1;
      last = there == static_cast<unsigned long long>(row.parts);
      seen = atomicCAS(ticket, expected, last ? 0 : p.parts.launch << 8 | there);
    } while (seen != expected);
    return last;
  }

  // This block's part of a row that other blocks, or others of its own parts, go on with; true for the part that is the
  // last to come.
  template <bool kPacked>
  __device__ __forceinline__ bool leave_part(const Row& row, const float (&o)[kAccumulators]) const {
    uint4* to = reinterpret_cast<uint4*>(p.parts.sums + row.place * kPartBytes<kPacked>) + thread;
#pragma unroll
    for (int i = 0; i < 8 * kVectors<kPacked>; ++i) to[i * kValueThreads] = vector_of<kPacked>(o, i);
    if (thread < kPartStats) {
      p.parts.stats[row.place * kPartStats + thread] =
          thread < kTileHeads ? shared.row_max[thread] : shared.row_sum[thread - kTileHeads];
    }
    if (row.alone != 0) {
      if (row.part != row.parts - 1) return false;
      ptx::named_barrier<2, kValueThreads>();
      return true;
    }
    __threadfence();
    ptx::named_barrier<2, kValueThreads>();
    if (thread == 0) {
      shared.last_part = is_last(row) ? 1 : 0;
      __threadfence();
    }
    ptx::named_barrier<2, kValueThreads>();
    return shared.last_part != 0;
  }

  // All parts of a row, in their order, whoever comes last.
  template <bool kPacked>
  __device__ __forceinline__ void merge_parts(const Row& row) const {
    const auto stats_at = [&](int part) { return p.parts.stats + place_of(p, row, part) * kPartStats + head(); };
    float m[2] = {kNoMaximum, kNoMaximum};
#pragma unroll 1
    for (int part = 0; part < row.parts; ++part) {
      const float* stats = stats_at(part);
      m[0] = fmaxf(m[0], __ldcg(stats)), m[1] = fmaxf(m[1], __ldcg(stats + 8));
    }
    float sum[2] = {0, 0};
#pragma unroll 1
    for (int part = 0; part < row.parts; ++part) {
      const float* stats = stats_at(part);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += exp2_approx(__ldcg(stats + r * 8) - m[r]) * __ldcg(stats + kTileHeads + r * 8);
      }
    }
    const bool outside = shared.outside != 0;
    const int first = row.first_head + head();
    const OutputFactor factor[2] = {
        OutputFactor(output_factor(p, outside, first, shared.sink[first], m[0], sum[0])),
        OutputFactor(output_factor(p, outside, first + 8, shared.sink[first + 8], m[1], sum[1]))};
    if (warpgroup == 0 && thread % 4 == 0) {
      store_lse(p, row.token, outside, first, m[0], sum[0]);
      store_lse(p, row.token, outside, first + 8, m[1], sum[1]);
    }
    constexpr int kTogether = kPacked ? 2 : 1;  // groups
    constexpr int kLoads = kTogether * kVectors<kPacked>;
#pragma unroll 1
    for (int g = 0; g < 8; g += kTogether) {
      float v[kTogether][16] = {};
#pragma unroll 1
      for (int begin = 0; begin < row.parts; begin += 2) {
        uint4 u[2][kLoads];
        float weight[2][2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int part = min(begin + k, row.parts - 1);
          const auto* from =
              reinterpret_cast<const uint4*>(p.parts.sums + place_of(p, row, part) * kPartBytes<kPacked>) +
              g * kVectors<kPacked> * kValueThreads + thread;
#pragma unroll
          for (int i = 0; i < kLoads; ++i) u[k][i] = __ldcg(from + i * kValueThreads);
          weight[k][0] = __ldcg(stats_at(part)), weight[k][1] = __ldcg(stats_at(part) + 8);
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (begin + k >= row.parts) break;
          const float w[2] = {exp2_approx(weight[k][0] - m[0]), exp2_approx(weight[k][1] - m[1])};
#pragma unroll
          for (int t = 0; t < kTogether; ++t) {
            uint4 part[kVectors<kPacked>];
#pragma unroll
            for (int i = 0; i < kVectors<kPacked>; ++i) part[i] = u[k][t * kVectors<kPacked> + i];
            add_partial(part, w, v[t]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int group = warpgroup * 8 + g + t;
        if (kPacked) {
          store_group_pair(pair_place(p, row.token, first, group, thread % 4), v[t], factor, first);
        } else {
          store_group_plain(row.token, v[t], factor, first, group);
        }
      }
    }
  }

  __device__ __forceinline__ void finish_part(const Row& row, const float (&o)[kAccumulators]) const {
    if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      if (leave_part<true>(row, o)) merge_parts<true>(row);
    } else {
      if (leave_part<false>(row, o)) merge_parts<false>(row);
    }
  }

  __device__ __forceinline__ void leave_stats() const { ptx::mbarrier_arrive(&shared.barriers.stats_empty); }

  __device__ __forceinline__ void run() {
    ptx::mbarrier_wait(&shared.barriers.stats_full, 0);
    int tiles = __shfl_sync(~0u, shared.tiles[0], 0);
    leave_stats();
#pragma unroll 1
    for (int index = 0; shared.rows[index % kRows].any(); ++index) {
      const Row& row = shared.rows[index % kRows];
      float o[kAccumulators];
      if (tiles == 0) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) o[i] = 0;
      } else {
        ptx::leave_undefined(o);
      }
      const bool rotated = p.cos_sin != nullptr && warpgroup == 1 && tiles > 0;
#pragma unroll 1
      for (bool first = true; tiles > 0; --tiles, first = false) tile(o, first);
      if (rotated) rotate(o, ptx::shared_address(shared.rotation[index & 1]));
      ptx::forget(index), ptx::forget(thread);  // the row needs no registers meanwhile
      if (row.ranks > 1) {                      // the last one
        if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
          finish_shared<true>(row, o, (index + 1) & 1);
        } else {
          finish_shared<false>(row, o, (index + 1) & 1);
        }
        return;
      }
      ptx::mbarrier_wait(&shared.barriers.stats_full, (index + 1) & 1);
      trace(Trace::kFactors);
      if (row.parts > 1) {
        finish_part(row, o);
      } else if (any_live(row.first_head)) {
        finish(row.token, row.first_head, o);
      }
      trace(Trace::kStored);
      tiles = __shfl_sync(~0u, shared.tiles[(index + 1) & 1], 0);
      leave_stats();
    }
  }
};

}  // namespace megamla::cuda
