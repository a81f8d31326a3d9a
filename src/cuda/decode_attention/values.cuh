// The values warpgroups: O += P V, each for 256 of the 512 dims, and the end of a row.
#pragma once

#include "cuda/decode_attention/output.cuh"
#include "cuda/decode_attention/scores.cuh"

namespace megamla::cuda {

constexpr int kHalfDims = format::kHeadDim / 2;  // of a warpgroup
constexpr int kAccumulators = 128;               // 64 heads x 256 dims over 128 threads

struct Values {
  const DecodeParams& p;
  Shared& shared;
  int thread;     // of 256
  int warpgroup;  // 0, 1
  int lane;
  int rows[2];  // heads of the tile
  Ring ring;

  __device__ Values(const DecodeParams& params, Shared& s, int t)
      : p(params), shared(s), thread(t), warpgroup(__shfl_sync(~0u, t / 128, 0)), lane(t % 32) {
    rows[0] = t % 128 / 32 * 16 + lane / 4;
    rows[1] = rows[0] + 8;
  }

  __device__ __forceinline__ void tile(float (&o)[kAccumulators]) {
    ptx::mbarrier_wait(&shared.p_full[ring.stage], ring.parity);
    const float alpha[2] = {shared.alpha[ring.stage][rows[0]], shared.alpha[ring.stage][rows[1]]};
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) o[i] *= alpha[i / 2 % 2];
    }
    const ptx::Descriptor probabilities(ptx::shared_address(shared.p[ring.stage]), 0, 8 * kRowBytes);
    const ptx::Descriptor v(ptx::shared_address(shared.keys[ring.stage]) + warpgroup * (kBlocks / 2) * kBlockBytes,
                            kBlockBytes, 8 * kRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      ptx::wgmma_m64n128k16_mn<0>(o, probabilities.at(step * 32), v.at(step * 16 * kRowBytes));
      ptx::wgmma_m64n128k16_mn<64>(o, probabilities.at(step * 32), v.at(step * 16 * kRowBytes + 2 * kBlockBytes));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::mbarrier_arrive(&shared.keys_empty[ring.stage]);
    ring.advance();
  }

  // row_max and row_sum of this thread's heads.
  struct Stats {
    float max[2];
    float sum[2];
  };
  __device__ __forceinline__ Stats take_stats(uint32_t parity) const {
    ptx::mbarrier_wait(&shared.stats_full, parity);
    Stats s;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s.max[r] = shared.row_max[rows[r]];
      s.sum[r] = shared.row_sum[rows[r]];
    }
    return s;
  }
  __device__ __forceinline__ void leave_stats() const { ptx::mbarrier_arrive(&shared.stats_empty); }

  // Accumulators of one group and head rows[r], in the order of their dims.
  __device__ __forceinline__ static void dims_of(const float* o, int r, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = o[i * 4 + r * 2], x[4 + i] = o[i * 4 + r * 2 + 1];
  }

  // One group at a time, after which the accumulators move down by a group: straight code for all eight would have to
  // be fetched anew for every row.
  template <class Store>
  __device__ __forceinline__ void for_groups(const OutputRow& row, float (&o)[kAccumulators], Store&& store) const {
    constexpr int kStep = 1;
#pragma unroll 1
    for (int g = 0; g < 8; g += kStep) {
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float x[8];
          dims_of(o + k * 16, r, x);
          rotate_back_group(row, x, warpgroup * 8 + g + k, lane % 4);
          store(x, r, warpgroup * 8 + g + k);
        }
      }
#pragma unroll
      for (int i = 0; i < kAccumulators - 16 * kStep; ++i) o[i] = o[i + 16 * kStep];
    }
  }

  __device__ __forceinline__ void finish(const OutputRow& row, int first_head, float (&o)[kAccumulators],
                                         const Stats& s) const {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = first_head + rows[r];
      factor[r] = output_factor(p, row, head, s.max[r], s.sum[r]);
      if (warpgroup == 0 && lane % 4 == 0) store_lse(p, row, head, s.max[r], s.sum[r]);
    }
    const int c = lane % 4;
    if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      PairPlace places[2] = {pair_place(p, row.token, first_head + rows[0], warpgroup * 8, c),
                             pair_place(p, row.token, first_head + rows[1], warpgroup * 8, c)};
      for_groups(row, o,
                 [&](const float(&x)[8], int r, int) { store_pair(p, places[r], x, factor[r], row.outside, c); });
    } else {
      for_groups(row, o, [&](const float(&x)[8], int r, int group) {
        store_plain(p, row.token, first_head + rows[r], x, factor[r], row.outside, group * 32 + c * 8);
      });
    }
  }

  // Blocks of a cluster leave their partial O in their key stages; each then merges every ranks-th group of 32 dims,
  // rank after rank.
  __device__ __forceinline__ void leave_partial(const float (&o)[kAccumulators]) {
    ptx::named_barrier<2, kValueThreads>();  // both warpgroups are done with the stages
    float4* partial = reinterpret_cast<float4*>(shared.keys);
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      partial[i / 4 * kValueThreads + thread] = {o[i], o[i + 1], o[i + 2], o[i + 3]};
    }
  }

  __device__ __forceinline__ void merge(const OutputRow& row, int first_head, int rank, int ranks) {
    const uint32_t max_at = ptx::shared_address(shared.row_max);
    const uint32_t sum_at = ptx::shared_address(shared.row_sum);
    // The weights of the blocks' partial results, one thread a head; all loads at once, each takes long.
    if (thread < kTileHeads) {
      float maxima[plan::kMostClusterBlocks];
      float sums[plan::kMostClusterBlocks];
#pragma unroll
      for (int other = 0; other < plan::kMostClusterBlocks; ++other) {
        const int from = min(other, ranks - 1);
        maxima[other] = ptx::load_cluster(ptx::cluster_address(max_at + thread * 4, from));
        sums[other] = ptx::load_cluster(ptx::cluster_address(sum_at + thread * 4, from));
      }
      float m = kNoMaximum;
#pragma unroll
      for (int other = 0; other < plan::kMostClusterBlocks; ++other) m = fmaxf(m, maxima[other]);
      float sum = 0;
#pragma unroll
      for (int other = 0; other < plan::kMostClusterBlocks; ++other) {
        const float weight = other < ranks ? exp2_approx(maxima[other] - m) : 0;
        sum += weight * sums[other];
        shared.merge_weight[other][thread] = weight;
      }
      shared.merge_factor[thread] = output_factor(p, row, first_head + thread, m, sum);
      if (rank == 0) store_lse(p, row, first_head + thread, m, sum);
    }
    ptx::named_barrier<2, kValueThreads>();
    const uint32_t partial = ptx::shared_address(shared.keys) + thread * 16;
#pragma unroll 1
    for (int g = rank; g < 8; g += ranks) {
      float v[16] = {};
      constexpr int kTogether = 4;
#pragma unroll 1
      for (int first = 0; first < ranks; first += kTogether) {
        float4 u[kTogether][4];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const int other = min(first + k, ranks - 1);
          const uint32_t from = ptx::cluster_address(partial + g * 4 * kValueThreads * 16, other);
#pragma unroll
          for (int i = 0; i < 4; ++i) u[k][i] = ptx::load_cluster_4(from + i * kValueThreads * 16);
        }
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (first + k >= ranks) break;
          const float weight[2] = {shared.merge_weight[first + k][rows[0]], shared.merge_weight[first + k][rows[1]]};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            v[i * 4] += weight[0] * u[k][i].x;
            v[i * 4 + 1] += weight[0] * u[k][i].y;
            v[i * 4 + 2] += weight[1] * u[k][i].z;
            v[i * 4 + 3] += weight[1] * u[k][i].w;
          }
        }
      }
      const int group = warpgroup * 8 + g;
      const int c = lane % 4;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x[8];
        dims_of(v, r, x);
        rotate_back_group(row, x, group, c);
        const int head = first_head + rows[r];
        if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
          PairPlace place = pair_place(p, row.token, head, group, c);
          store_pair(p, place, x, shared.merge_factor[rows[r]], row.outside, c);
        } else {
          store_plain(p, row.token, head, x, shared.merge_factor[rows[r]], row.outside, group * 32 + c * 8);
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
    for (int index = 0;; ++index) {
      const ComingRow coming = load_row(p, index);
      if (coming.token < 0) break;
      const ComingPosition position = load_position(p, coming.token);
      const Row row = arrived(p, coming);
      float o[kAccumulators];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) o[i] = 0;
      for (int t = row.begin; t < row.end; t += row.ranks) tile(o);
      const Rotation rotation = rotation_of(p, position);
      const OutputRow out{row.token, rotation.cos_sin, rotation.outside};
      const Stats stats = take_stats(index & 1);
      if (row.ranks == 1) {
        leave_stats();
        finish(out, row.first_head, o, stats);
      } else {
        leave_partial(o);
        ptx::cluster_barrier();
        merge(out, row.first_head, row.rank, row.ranks);
        ptx::cluster_leave();
      }
    }
  }
};

}  // namespace megamla::cuda
