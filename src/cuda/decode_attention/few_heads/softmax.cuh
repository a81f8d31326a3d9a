// What softmax has in common for crews of two and of four warps: parts of logits -> probabilities as fragments, with a
// running maximum of the crew's own.
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/decode_attention/few_heads/values.cuh"

namespace megamla::cuda::few_heads {

// Of a lane's two heads.
struct Running {
  float2 maximum;  // the same in all lanes that have the heads
  float2 sum;      // of the probabilities of the lane's keys of every step
};

// A sum that is not finite, as of a NaN scale, makes a NaN.
__device__ __forceinline__ float logit_of(float sum, float factor, float bias) {
  return fmaf(sum, factor, fmaf(sum, 0.0F, bias));
}
__device__ __forceinline__ float bias_of(bool valid) { return __uint_as_float(valid ? 0 : 0xff800000u); }

__device__ __forceinline__ float2 add(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ float2 multiply(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
__device__ __forceinline__ float2 larger(float2 a, float2 b) { return {fmaxf(a.x, b.x), fmaxf(a.y, b.y)}; }
__device__ __forceinline__ float2 from_lane(float2 v, int lanes) {
  return {__shfl_xor_sync(~0u, v.x, lanes), __shfl_xor_sync(~0u, v.y, lanes)};
}

// Maxima move up to the step's logits, whose lanes are `least` and more apart; what the sums shrink by.
__device__ __forceinline__ float2 raise_maxima(float2 most, int least, Running& running) {
#pragma unroll
  for (int lanes = least; lanes < 32; lanes *= 2) most = larger(most, from_lane(most, lanes));
  most = larger(most, running.maximum);
  const float2 by = {exp2_approx(running.maximum.x - most.x), exp2_approx(running.maximum.y - most.y)};
  running.maximum = most;
  running.sum = multiply(running.sum, by);
  return by;
}
template <int kEights>
__device__ __forceinline__ void shrink_sums(Sums<kEights>& o, const float2 (&by)[kEights]) {
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
#pragma unroll
    for (int t = 0; t < kTiles<kEights>; ++t) {
      o[e][t][0] *= by[e].x, o[e][t][1] *= by[e].y, o[e][t][2] *= by[e].x, o[e][t][3] *= by[e].y;
    }
  }
}

// Of a crew that has so many eights of heads.
template <int kEights>
struct Softmax;

}  // namespace megamla::cuda::few_heads
