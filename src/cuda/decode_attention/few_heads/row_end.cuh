// The end of a row. Every warp leaves its sums in its arena as the lanes hold them; 32 dims of 8 heads at a time are
// merged: warp after warp by one of the block's warps, then block after block by one of the cluster's. What is merged
// is turned into rows, rotated back, cast and stored.
#pragma once

#include "cuda/decode_attention/few_heads/softmax_of_four.cuh"
#include "cuda/decode_attention/few_heads/softmax_of_two.cuh"
#include "cuda/decode_attention/output.cuh"

namespace megamla::cuda::few_heads {

template <class First, class Second, int kEights>
struct RowEnd {
  using A = Arena<First, Second, kEights>;
  using S = Shared<kEights>;
  static constexpr int kUnits = 16 * kEights;  // 32 dims of 8 heads
  static constexpr int kCrew = kCrewWarps<kEights>;
  static constexpr int kGroups = 16 / kCrew;  // of 32 dims, of a warp
  const DecodeParams& p;
  S& shared;
  const Lane& me;
  int warps;
  uint32_t arenas;

  __device__ __forceinline__ void leave(const Running& running, const Sums<kEights>& o, int unit) const {
    using M = Softmax<kEights>;
    float2 sum = running.sum;
#pragma unroll
    for (int lanes = M::kLeastLanes; lanes < 32; lanes *= 2) sum = add(sum, from_lane(sum, lanes));
    if (M::tells(me)) {
      const int head = M::head(me.part, me.lane);
      *reinterpret_cast<float2*>(&shared.crew_max[me.warp / kCrew][head]) = running.maximum;
      *reinterpret_cast<float2*>(&shared.crew_sum[me.warp / kCrew][head]) = sum;
    }
    // In 2^-60, as the kernel for many heads has its sums.
    if (me.lane == 0) shared.warp_unit[me.warp] = power_of_two(unit - kKeyShift);
    const uint32_t to = arenas + me.warp * A::kBytes;
    using V = Values<First, Second, kEights>;
    const bool turn = A::kNibbles && unit != kNibbleShift;  // see Sums
    if (turn) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int t = 0; t < V::kTiles; ++t) {
          store_sums(to + V::own_fragment(me) + e * V::kTiles * 512 + V::fragment_distance(t), o[e][t]);
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int t = 0; t < V::kTiles; ++t) store_sums(to + me.lane * 16 + (e * V::kTiles + t) * 512, o[e][t]);
      }
    }
  }

  // Eight threads a head, one for each part that there may be: the parts' common maximum and sum, weighed.
  struct Weighed {
    float maximum;
    float sum;
    float weight;
  };
  __device__ __forceinline__ static Weighed weigh(float maximum, float sum, bool there) {
    float m = maximum;
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, lanes));
    const float weight = there ? exp2_approx(maximum - m) : 0;
    sum = there ? sum * weight : 0;
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return {m, sum, weight};
  }
  __device__ __forceinline__ void finish_head(int head, int token, int first_head, bool tells, const Weighed& w) const {
    const bool outside = shared.rotation.outside;
    shared.factor[head] = output_factor(p, outside, first_head + head, w.maximum, w.sum);
    if (tells) store_lse(p, token, outside, first_head + head, w.maximum, w.sum);
  }
  __device__ __forceinline__ void weigh_warps(int token, int first_head, int rank, int ranks) const {
    static_assert(plan::kMostShares == 8 && S::kMostCrews <= 8);
    const int head = static_cast<int>(threadIdx.x) / 8;
    const int other = static_cast<int>(threadIdx.x) % 8;
    if (head >= S::kHeads) return;
    const int crews = warps / kCrew;
    const int crew = min(other, crews - 1);
    const Weighed w = weigh(shared.crew_max[crew][head], shared.crew_sum[crew][head], other < crews);
    if (other < crews) {
#pragma unroll
      for (int part = 0; part < kCrew; ++part) {
        const int warp = other * kCrew + part;
        shared.weight[warp][head] = w.weight * shared.warp_unit[warp];
      }
    }
    if (ranks == 1) {
      if (other == 0) finish_head(head, token, first_head, true, w);
    } else if (other < ranks) {
      ptx::store_cluster(
          ptx::cluster_address(ptx::shared_address(&shared.block[rank][head]), static_cast<uint32_t>(other)),
          float2{w.maximum, w.sum});
    }
  }
  __device__ __forceinline__ void weigh_blocks(int token, int first_head, int rank, int ranks) const {
    const int head = static_cast<int>(threadIdx.x) / 8;
    const int other = static_cast<int>(threadIdx.x) % 8;
    if (head >= S::kHeads) return;
    const float2 block = shared.block[min(other, ranks - 1)][head];
    const Weighed w = weigh(block.x, block.y, other < ranks);
    shared.weight[other][head] = w.weight;
    if (other == 0) finish_head(head, token, first_head, rank == 0, w);
  }

  // A unit is 64 times 16 bytes of the sums of a warp, two a lane: these of the block's first crew, so far apart.
  static constexpr int kApart = A::kNibbles ? 4 * 512 : 512;
  __device__ __forceinline__ uint32_t sums_of(int unit) const {
    const int group = unit % 16 % kGroups;
    const uint32_t at = arenas + unit % 16 / kGroups * A::kBytes + unit / 16 * kTiles<kEights> * 512;
    constexpr int kLanePieces = kWarpDims<kEights> / 128;
    return A::kNibbles
               ? at + (group % kLanePieces * 8 + me.lane / 8) * 512 + (group / kLanePieces * 8 + me.lane % 8) * 16
               : at + group * 1024 + me.lane * 16;
  }
  // The sum of `parts` parts, which `at` tells the places of.
  template <class Load>
  __device__ __forceinline__ void merge(int unit, int parts, int first_weight, int weight_step, const Load& load,
                                        float4 (&x)[2]) const {
    constexpr int kTogether = 4;
    const int head = unit / 16 * 8 + 2 * me.c;
    x[0] = x[1] = {0, 0, 0, 0};
#pragma unroll 1
    for (int first = 0; first < parts; first += kTogether) {
      float4 v[kTogether][2];
      float2 weight[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= parts) break;
        v[k][0] = load(first + k, 0);
        v[k][1] = load(first + k, 1);
        weight[k] = *reinterpret_cast<const float2*>(&shared.weight[first_weight + (first + k) * weight_step][head]);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= parts) break;
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          x[t].x += weight[k].x * v[k][t].x, x[t].y += weight[k].y * v[k][t].y;
          x[t].z += weight[k].x * v[k][t].z, x[t].w += weight[k].y * v[k][t].w;
        }
      }
    }
  }
  __device__ __forceinline__ void merge_warps(int unit, float4 (&x)[2]) const {
    const uint32_t at = sums_of(unit);
    merge(
        unit, warps / kCrew, unit % 16 / kGroups, kCrew,
        [&](int crew, int t) { return ptx::load_shared_floats(at + crew * kCrew * A::kBytes + t * kApart); }, x);
  }
  // The block's own, where its first crew's were.
  __device__ __forceinline__ void merge_block() const {
#pragma unroll 1
    for (int unit = me.warp; unit < kUnits; unit += warps) {
      float4 x[2];
      merge_warps(unit, x);
#pragma unroll
      for (int t = 0; t < 2; ++t) store_floats(sums_of(unit) + t * kApart, x[t]);
    }
  }
  __device__ __forceinline__ static void store_floats(uint32_t to, const float4& x) {
    ptx::store_shared(to,
                      uint4{__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)});
  }

  // 32 dims of 8 heads, merged, as the lanes of the sums hold them -> the output: four lanes a head, 8 dims each.
  __device__ __forceinline__ void store_unit(int unit, int token, int first_head, const float4 (&merged)[2]) const {
    const uint32_t scratch = arenas + me.warp * A::kBytes + A::kSumsBytes;
#pragma unroll
    for (int t = 0; t < 2; ++t) store_floats(scratch + t * 512 + me.lane * 16, merged[t]);
    __syncwarp();
    constexpr int kPlain = format::kNopeDim / 32;  // groups that are not rotated
    const int group = unit % 16;
    const int head = unit / 16 * 8 + me.g;
    const bool bf16 = A::kRopeBf16 && group >= kPlain;
    // See Sums: eight dims are rows 2i and 2i + 1 of four lanes, or those i of eight lanes.
    const uint32_t at =
        scratch + (me.c >> 1) * 512 + (me.g >> 1) * 16 + (me.g & 1) * 4 + (bf16 ? (me.c & 1) * 8 : (me.c & 1) * 256);
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = __uint_as_float(ptx::load_shared_1(at + (bf16 ? i * 64 : i / 2 * 64 + i % 2 * 8)));
    }
    __syncwarp();
    if (group >= kPlain && shared.rotation.cos_sin != nullptr) {
      const float* cosines = shared.rotation.cos_sin + (group - kPlain) * 16 + me.c * 4;
      rotate_back(x, *reinterpret_cast<const float4*>(cosines),
                  *reinterpret_cast<const float4*>(cosines + format::kRopeDim / 2));
    }
    const OutputFactor factor(shared.factor[head]);
    if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      store_pair(pair_place(p, token, first_head + head, group, me.c), x, factor, me.c);
    } else {
      store_plain(p, token, first_head + head, x, factor, group * 32 + me.c * 8);
    }
  }

  // After a barrier behind leave().
  __device__ __forceinline__ void run(int token, int first_head, int rank, int ranks) const {
    if (ranks > 1) ptx::cluster_wait();  // the others have begun, and may be written to
    weigh_warps(token, first_head, rank, ranks);
    __syncthreads();
    if (ranks > 1) {
      merge_block();
      ptx::cluster_barrier();
      weigh_blocks(token, first_head, rank, ranks);
      __syncthreads();
    }
#pragma unroll 1
    for (int unit = rank + ranks * me.warp; unit < kUnits; unit += ranks * warps) {
      float4 x[2];
      if (ranks == 1) {
        merge_warps(unit, x);
      } else {
        const uint32_t at = sums_of(unit);
        merge(
            unit, ranks, 0, 1,
            [&](int from, int t) {
              return ptx::load_cluster_4(ptx::cluster_address(at + t * kApart, static_cast<uint32_t>(from)));
            },
            x);
      }
      store_unit(unit, token, first_head, x);
    }
    if (ranks > 1) ptx::cluster_leave();
  }
};

}  // namespace megamla::cuda::few_heads
