// Logits of a step -> probabilities as fragments, with a running maximum of the crew's own. Both warps of a crew of two
// do the same with the sum of their parts.
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/decode_attention/few_heads/values.cuh"

namespace megamla::cuda::few_heads {

// Of heads 2c and 2c + 1 of each eight.
template <int kEights>
struct Running {
  float2 maximum[kEights];  // the same in all lanes that have the head
  float2 sum[kEights];      // of the probabilities of keys g and g + 8 of every step
};

// By constants: a barrier that is not known at compile time takes all 16.
__device__ __forceinline__ void meet_crew(int crew) {
  if (crew == 0) {
    ptx::named_barrier<1, 64>();
  } else if (crew == 1) {
    ptx::named_barrier<2, 64>();
  } else if (crew == 2) {
    ptx::named_barrier<3, 64>();
  } else {
    ptx::named_barrier<4, 64>();
  }
}

// To logits: the crew's other half of the products. Two places in turn, so that one barrier a step will do.
template <int kEights>
__device__ __forceinline__ void exchange_halves(const Lane& me, uint32_t mine, uint32_t others, int turn,
                                                float (&logits)[kEights][4]) {
  const uint32_t at = (turn & 1) * (32 * kEights * 16) + me.lane * 16;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    ptx::store_shared(mine + at + e * 512, uint4{__float_as_uint(logits[e][0]), __float_as_uint(logits[e][1]),
                                                 __float_as_uint(logits[e][2]), __float_as_uint(logits[e][3])});
  }
  meet_crew(me.warp / 2);
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const float4 other = ptx::load_shared_floats(others + at + e * 512);
    logits[e][0] += other.x, logits[e][1] += other.y, logits[e][2] += other.z, logits[e][3] += other.w;
  }
}

// A sum that is not finite, as of a NaN scale, makes a NaN.
__device__ __forceinline__ float logit_of(float sum, float factor, float bias) {
  return fmaf(sum, factor, fmaf(sum, 0.0F, bias));
}

// Maxima move up to the step's logits, and what was summed before, if anything was, shrinks.
template <int kEights>
__device__ __forceinline__ void raise_maxima(const float (&logits)[kEights][4], bool first, Running<kEights>& running,
                                             Sums<kEights>& o) {
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    float2 most = {fmaxf(logits[e][0], logits[e][2]), fmaxf(logits[e][1], logits[e][3])};
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, lanes));
      most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, lanes));
    }
    most.x = fmaxf(most.x, running.maximum[e].x), most.y = fmaxf(most.y, running.maximum[e].y);
    const float2 shrink = {exp2_approx(running.maximum[e].x - most.x), exp2_approx(running.maximum[e].y - most.y)};
    running.maximum[e] = most;
    if (first) continue;
    running.sum[e].x *= shrink.x, running.sum[e].y *= shrink.y;
#pragma unroll
    for (int t = 0; t < 32 / kEights; ++t) {
      o[e][t][0] *= shrink.x, o[e][t][1] *= shrink.y, o[e][t][2] *= shrink.x, o[e][t][3] *= shrink.y;
    }
  }
}

// Logits to probabilities b, f16: keys 2c, 2c + 1 and 2c + 8, 2c + 9 of head g.
template <int kEights>
__device__ __forceinline__ void soften(float (&logits)[kEights][4], float slack, bool first, Running<kEights>& running,
                                       Sums<kEights>& o, uint2 (&b)[kEights]) {
  bool above = false;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const float2 bound = {running.maximum[e].x + slack, running.maximum[e].y + slack};
    above = above || fmaxf(logits[e][0], logits[e][2]) > bound.x || fmaxf(logits[e][1], logits[e][3]) > bound.y;
  }
  if (__any_sync(~0u, above)) raise_maxima<kEights>(logits, first, running, o);
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const float2 m = running.maximum[e];
    const float low[2] = {exp2_approx(logits[e][0] - m.x), exp2_approx(logits[e][1] - m.y)};
    const float high[2] = {exp2_approx(logits[e][2] - m.x), exp2_approx(logits[e][3] - m.y)};
    running.sum[e].x += low[0] + high[0], running.sum[e].y += low[1] + high[1];
    b[e] = {ptx::transposed(f16x2_round(low[0], low[1])), ptx::transposed(f16x2_round(high[0], high[1]))};
  }
}

}  // namespace megamla::cuda::few_heads
