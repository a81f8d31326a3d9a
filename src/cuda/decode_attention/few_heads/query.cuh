// Q of a block's heads as b fragments in registers: rotation, rounding, a power of two for each head that makes the
// largest element fit f16, and the factor of the optional RMSNorm.
#pragma once

#include "cuda/bf16x2.cuh"
#include "cuda/decode_attention/few_heads/tiles.cuh"

namespace megamla::cuda::few_heads {

// Of head g of an eight and of a group of 32 dims a lane has the dims 8c .. 8c + 7, the rows of two products. With e2m1
// keys in play their order is 0 2 1 3, 4 6 5 7.
template <int kEights>
using Query = uint32_t[kEights][kDimGroups][4];

// The lane's own place for 16 bytes of eight e, group i.
__device__ __forceinline__ uint32_t query_place(uint32_t staging, int index) {
  return staging + (index * kThreads + threadIdx.x) * 16;
}

template <int kEights>
__device__ __forceinline__ void fetch_query(const DecodeParams& p, const Lane& me, int token, int first_head,
                                            uint32_t staging) {
#pragma unroll 1
  for (int index = 0; index < kEights * kDimGroups; ++index) {
    const int head = first_head + index / kDimGroups * 8 + me.g;
    const bool live = head < p.live_heads;
    const int chunk = me.warp * (kWarpDims / 16) + index % kDimGroups * 2 + me.c / 2;
    const uint16_t* from =
        p.q + token * p.q_token_stride + (live ? head : 0) * p.q_head_stride + chunk * p.q_chunk_stride + me.c % 2 * 8;
    ptx::copy_16_async(query_place(staging, index), from, live);
  }
}

// Rotates, and leaves each warp's largest |q| and sum of squares of each head.
template <int kEights, class SharedT>
__device__ __forceinline__ void rotate_query(const DecodeParams& p, SharedT& shared, const Lane& me,
                                             const Rotation& rotation, uint32_t staging) {
  constexpr uint32_t kMagnitude = 0x7fff7fffu;
#pragma unroll 1
  for (int e = 0; e < kEights; ++e) {
    uint32_t largest = 0;
    float square = 0;
#pragma unroll 1
    for (int i = 0; i < kDimGroups; ++i) {
      const uint32_t at = query_place(staging, e * kDimGroups + i);
      uint4 v = ptx::load_shared(at);
      if (p.q_norm != 0) square += sum_of_squares(v);
      const int rope = me.warp * kWarpDims + i * 32 - format::kNopeDim;
      if (rope >= 0 && rotation.cos_sin != nullptr) {
        const float* cosines = rotation.cos_sin + rope / 2 + me.c * 4;
        v = rotate_pairs(v, *reinterpret_cast<const float4*>(cosines),
                         *reinterpret_cast<const float4*>(cosines + format::kRopeDim / 2));
        ptx::store_shared(at, v);
      }
      largest = bf16x2_max(bf16x2_max(largest, v.x & kMagnitude), v.y & kMagnitude);
      largest = bf16x2_max(bf16x2_max(largest, v.z & kMagnitude), v.w & kMagnitude);
    }
    float most = fmaxf(bf16x2_low(largest), bf16x2_high(largest));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    if (me.c == 0) {
      shared.query.most[me.warp][e * 8 + me.g] = most;
      shared.query.square[me.warp][e * 8 + me.g] = square;
    }
  }
}

// One thread a head: the power of two that q is multiplied by, at most 2^15 then, and what makes q . k a base-2 logit.
template <class SharedT>
__device__ __forceinline__ void scale_head(const DecodeParams& p, SharedT& shared, int head) {
  float most = 0;
  float square = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    most = fmaxf(most, shared.query.most[w][head]);
    square += shared.query.square[w][head];
  }
  const uint32_t exponent = min(127 + 14 + 127 - (__float_as_uint(most) >> 23), 253u);
  float factor = p.logit_scale * (1.0F / kKeyUnshift) * __uint_as_float((254 - exponent) << 23);
  if (p.q_norm != 0) factor *= rsqrtf(square * (1.0F / format::kHeadDim) + p.q_norm_eps);
  shared.head[head] = {__uint_as_float(exponent << 23), factor};
}

template <class First, class Second, int kEights, class SharedT>
__device__ __forceinline__ void take_query(const SharedT& shared, const Lane& me, uint32_t staging, Query<kEights>& q) {
  using K = Kinds<First, Second>;
#pragma unroll 1
  for (int index = 0; index < kEights * kDimGroups; ++index) {
    const float scale = shared.head[index / kDimGroups * 8 + me.g].query;
    const uint32_t at = query_place(staging, index);
    const uint4 v = ptx::load_shared(at);
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
    const bool bf16 = K::kRopeBf16 && me.warp * kWarpDims + index % kDimGroups * 32 >= format::kNopeDim;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = bf16x2_low(words[i]) * scale;
      const float high = bf16x2_high(words[i]) * scale;
      words[i] = bf16 ? pack_bf16(low, high) : ptx::pack_f16(low, high);
    }
    if (K::kNibbles) {
      ptx::store_shared(at, uint4{__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[0], words[1], 0x7632),
                                  __byte_perm(words[2], words[3], 0x5410), __byte_perm(words[2], words[3], 0x7632)});
    } else {
      ptx::store_shared(at, uint4{words[0], words[1], words[2], words[3]});
    }
  }
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
#pragma unroll
    for (int i = 0; i < kDimGroups; ++i) {
      const uint4 v = ptx::load_shared(query_place(staging, e * kDimGroups + i));
      q[e][i][0] = v.x, q[e][i][1] = v.y, q[e][i][2] = v.z, q[e][i][3] = v.w;
    }
  }
}

}  // namespace megamla::cuda::few_heads
