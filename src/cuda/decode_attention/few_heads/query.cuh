// Q of a block's heads as b fragments in shared memory: rotation, rounding, a power of two for each head that makes the
// largest element fit f16, and the factor of the optional RMSNorm. A warp prepares whole heads, a lane dims 8 lane ..
// and 256 + 8 lane ..
#pragma once

#include "cuda/bf16x2.cuh"
#include "cuda/decode_attention/few_heads/tiles.cuh"
#include "cuda/f16x2.cuh"

namespace megamla::cuda::few_heads {

// Where a head's eight dims lie among the 8 places of theirs: readers want 2 heads x 4 eights of dims at once. With
// e2m1 keys in play those are a lane's share apart, and neighbours; with fp8_584 pairs of neighbours.
template <class First, class Second, int kEights>
__device__ __forceinline__ int query_swizzle(int eight_dims) {
  using A = Arena<First, Second, kEights>;
  if (A::kRopeBf16) return (eight_dims & 6);
  const int own = A::kNibbles ? eight_dims / (kWarpDims<kEights> / 32) : 0;
  return ((own ^ eight_dims) & 3) << 1;
}

// The heads of a warp, where a block has eight.
template <int kEights>
struct ComingQuery {
  static constexpr int kHeads = kEights;
  uint4 dims[kHeads][2];
};

template <int kEights>
__device__ __forceinline__ void fetch_query(const DecodeParams& p, const Lane& me, int warps, int token, int first_head,
                                            ComingQuery<kEights>& q) {
#pragma unroll
  for (int k = 0; k < ComingQuery<kEights>::kHeads; ++k) {
    const int in_block = me.warp + k * warps;
    const int head = first_head + in_block;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      q.dims[k][i] = {0, 0, 0, 0};
      if (in_block >= 8 * kEights || head >= p.live_heads) continue;
      const int chunk = me.lane / 2 + i * 16;
      q.dims[k][i] = *reinterpret_cast<const uint4*>(p.q + token * p.q_token_stride + head * p.q_head_stride +
                                                     chunk * p.q_chunk_stride + me.lane % 2 * 8);
    }
  }
}

// Cosines and sines of the lane's four pairs among the rotated dims, if it has some.
struct QueryAngles {
  float4 cosines;
  float4 sines;
};
__device__ __forceinline__ int first_rotated_dim(const Lane& me) { return (me.lane + 32) * 8 - format::kNopeDim; }
__device__ __forceinline__ QueryAngles fetch_angles(const Lane& me, const Rotation& rotation) {
  const int dim = first_rotated_dim(me);
  if (dim < 0 || rotation.cos_sin == nullptr) return {};
  const float* cosines = rotation.cos_sin + dim / 2;
  return {*reinterpret_cast<const float4*>(cosines), *reinterpret_cast<const float4*>(cosines + format::kRopeDim / 2)};
}

__device__ __forceinline__ float largest_magnitude(const uint4& v) {
  constexpr uint32_t kMagnitude = 0x7fff7fffu;
  const uint32_t largest =
      bf16x2_max(bf16x2_max(v.x & kMagnitude, v.y & kMagnitude), bf16x2_max(v.z & kMagnitude, v.w & kMagnitude));
  return fmaxf(bf16x2_low(largest), bf16x2_high(largest));
}

// Eight dims, scaled, in the order of the keys' fragments: 0 2 1 3, 4 6 5 7 with e2m1 keys.
template <bool kNibbles>
__device__ __forceinline__ uint4 scaled_query(const uint4& v, float scale, bool bf16) {
  uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = bf16x2_low(words[i]) * scale;
    const float high = bf16x2_high(words[i]) * scale;
    words[i] = bf16 ? bf16x2_round(low, high) : f16x2_round(low, high);
  }
  if (!kNibbles) return {words[0], words[1], words[2], words[3]};
  return {__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[0], words[1], 0x7632),
          __byte_perm(words[2], words[3], 0x5410), __byte_perm(words[2], words[3], 0x7632)};
}

template <class First, class Second, int kEights>
__device__ __forceinline__ void arrange_query(const DecodeParams& p, Shared<kEights>& shared, const Lane& me, int warps,
                                              const Rotation& rotation, const QueryAngles& angles,
                                              ComingQuery<kEights>& q) {
  using A = Arena<First, Second, kEights>;
  const int rope = first_rotated_dim(me);
#pragma unroll
  for (int k = 0; k < ComingQuery<kEights>::kHeads; ++k) {
    const int head = me.warp + k * warps;
    if (head >= 8 * kEights) break;
    uint4(&v)[2] = q.dims[k];
    float square = 0;
    if (p.q_norm != 0) {
      square = sum_of_squares(v[0]) + sum_of_squares(v[1]);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) square += __shfl_xor_sync(~0u, square, lanes);
    }
    if (rope >= 0 && rotation.cos_sin != nullptr) {
      v[1] = rotate_pairs(v[1], angles.cosines, angles.sines);
    }
    const float most = fmaxf(largest_magnitude(v[0]), largest_magnitude(v[1]));
    const uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(most));
    // At most 2^15 then.
    const uint32_t exponent = min(127 + 14 + 127 - (bits >> 23), 253u);
    const float scale = __uint_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int eight_dims = me.lane + 32 * i;
      const int place = (head % 8) ^ query_swizzle<First, Second, kEights>(eight_dims);
      shared.query[head / 8][eight_dims][place] =
          scaled_query<A::kNibbles>(v[i], scale, A::kRopeBf16 && i == 1 && rope >= 0);
    }
    if (me.lane == 0) {
      // What makes q . k a base-2 logit.
      float factor = p.logit_scale * (1.0F / kKeyUnshift) * __uint_as_float((254 - exponent) << 23);
      if (p.q_norm != 0) factor *= rsqrtf(square * (1.0F / format::kHeadDim) + p.q_norm_eps);
      shared.logit_factor[head] = factor;
    }
  }
}

}  // namespace megamla::cuda::few_heads
