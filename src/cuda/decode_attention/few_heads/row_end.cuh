// The end of a row: every block leaves its sums in shared memory; then the blocks of the row, or the one there is,
// divide the output groups among themselves and merge, rank after rank, rotate back, cast and store.
#pragma once

#include "cuda/decode_attention/few_heads/softmax.cuh"
#include "cuda/decode_attention/output.cuh"

namespace megamla::cuda::few_heads {

constexpr int kRowBytes = format::kHeadDim * 4;

// A head's sums are a row of fp32; 16-byte piece i lies at i ^ (head / 2 % 4), so that lanes that hold other heads
// write to other banks.
__device__ __forceinline__ uint32_t sums_address(uint32_t sums, int head, int dim) {
  return sums + head * kRowBytes + (((dim / 4) ^ (head / 2 % 4)) << 4);
}

template <int kEights, class SharedT>
__device__ __forceinline__ void leave_stats(SharedT& shared, const Lane& me, const Running<kEights>& running) {
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    float2 sum = running.sum[e];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, lanes);
      sum.y += __shfl_xor_sync(~0u, sum.y, lanes);
    }
    if (me.g == 0) {
      *reinterpret_cast<float2*>(&shared.end.sum[me.warp][e * 8 + 2 * me.c]) = sum;
      if (me.warp == 0) *reinterpret_cast<float2*>(&shared.row_max[e * 8 + 2 * me.c]) = running.maximum[e];
    }
  }
}

// After all warps are done with the stages.
template <bool kHalves, int kEights, class SharedT>
__device__ __forceinline__ void leave_sums(SharedT& shared, const Lane& me, const Sums<kEights>& o, uint32_t sums) {
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int dim = me.warp * kWarpDims + (kHalves ? block * 64 + me.g * 8 : me.g * 16 + block * 8);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = e * 8 + 2 * me.c + h;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&low)[4] = o[e][block * 4 + half * 2];
          const float(&high)[4] = o[e][block * 4 + half * 2 + 1];
          ptx::store_shared(sums_address(sums, head, dim + half * 4),
                            uint4{__float_as_uint(low[h]), __float_as_uint(low[2 + h]), __float_as_uint(high[h]),
                                  __float_as_uint(high[2 + h])});
        }
      }
    }
  }
  const int head = static_cast<int>(threadIdx.x);
  if (head < SharedT::kHeads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared.end.sum[w][head];
    shared.row_sum[head] = sum;
  }
}

// Eight threads a head, one for each rank that there may be: the weights of the ranks' sums and the factor of the
// whole. `unit` of a rank's sums, in 2^-60 as the kernel for many heads has them.
template <class SharedT>
__device__ __forceinline__ void weigh(const DecodeParams& p, SharedT& shared, int token, int first_head, int rank,
                                      int ranks) {
  static_assert(plan::kMostShares == 8 && SharedT::kHeads * 8 <= kThreads);
  const int head = static_cast<int>(threadIdx.x) / 8;
  const int other = static_cast<int>(threadIdx.x) % 8;
  if (head >= SharedT::kHeads) return;
  const uint32_t from = static_cast<uint32_t>(min(other, ranks - 1));
  const auto load = [&](const float& v) {
    return ptx::load_cluster(ptx::cluster_address(ptx::shared_address(&v), from));
  };
  const float maximum = load(shared.row_max[head]);
  const float unit = load(shared.row_unit);
  float sum = load(shared.row_sum[head]);
  float m = maximum;
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, lanes));
  const float weight = other < ranks ? exp2_approx(maximum - m) : 0;
  sum *= weight;
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  shared.end.weight[other][head] = weight * unit;
  if (other != 0) return;
  const bool outside = shared.rotation.outside;
  shared.end.factor[head] = output_factor(p, outside, first_head + head, m, sum);
  if (rank == 0) store_lse(p, token, outside, first_head + head, m, sum);
}

// A warp takes 32 dims of 8 heads at a time: four lanes a head, 8 dims each.
template <int kEights, class SharedT>
__device__ __forceinline__ void store_row(const DecodeParams& p, const SharedT& shared, const Lane& me, int token,
                                          int first_head, int rank, int ranks, uint32_t sums) {
  constexpr int kGroups = format::kHeadDim / 32;
#pragma unroll 1
  for (int item = rank * kWarps + me.warp; item < kGroups * kEights; item += ranks * kWarps) {
    const int group = item % kGroups;
    const int head = item / kGroups * 8 + me.g;
    const uint32_t low = sums_address(sums, head, group * 32 + me.c * 8);
    const uint32_t high = sums_address(sums, head, group * 32 + me.c * 8 + 4);
    float x[8] = {};
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int first = 0; first < ranks; first += kTogether) {
      float4 u[kTogether][2];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= ranks) break;
        u[k][0] = ptx::load_cluster_4(ptx::cluster_address(low, first + k));
        u[k][1] = ptx::load_cluster_4(ptx::cluster_address(high, first + k));
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= ranks) break;
        const float weight = shared.end.weight[first + k][head];
        x[0] += weight * u[k][0].x, x[1] += weight * u[k][0].y, x[2] += weight * u[k][0].z;
        x[3] += weight * u[k][0].w, x[4] += weight * u[k][1].x, x[5] += weight * u[k][1].y;
        x[6] += weight * u[k][1].z, x[7] += weight * u[k][1].w;
      }
    }
    constexpr int kPlain = format::kNopeDim / 32;  // groups that are not rotated
    if (group >= kPlain && shared.rotation.cos_sin != nullptr) {
      const float* cosines = shared.rotation.cos_sin + (group - kPlain) * 16 + me.c * 4;
      rotate_back(x, *reinterpret_cast<const float4*>(cosines),
                  *reinterpret_cast<const float4*>(cosines + format::kRopeDim / 2));
    }
    const OutputFactor factor(shared.end.factor[head]);
    if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      store_pair(pair_place(p, token, first_head + head, group, me.c), x, factor, me.c);
    } else {
      store_plain(p, token, first_head + head, x, factor, group * 32 + me.c * 8);
    }
  }
}

}  // namespace megamla::cuda::few_heads
