// The end of a row: division by the sum, rotation back, and the cast into the output pair (or bf16 / fp32), straight
// from accumulator registers.
//
// Of a head and a group of 32 dims a thread holds the 8 consecutive dims from 8 c on, c = lane % 4 (see tiles.cuh); the
// 8 heads of an output group are the lanes / 4 of a warp.
#pragma once

#include "cuda/attention/output_pair.cuh"
#include "cuda/attention/rotation.cuh"
#include "cuda/decode_attention/params.hpp"

namespace megamla::cuda {

// 8 dims, by cosines and sines of their pairs.
__device__ __forceinline__ void rotate_back(float (&x)[8], float4 cosines, float4 sines) {
  const float c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
  const float s[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const format::Pair y = format::rotate_back({x[2 * i], x[2 * i + 1]}, c[i], s[i]);
    x[2 * i] = y.x0, x[2 * i + 1] = y.x1;
  }
}

// What output_factor told.
struct OutputFactor {
  float value;
  bool zero;
  __device__ explicit OutputFactor(float told) : value(fmaxf(told, 0)), zero(told < 0) {}
};

// To the head 8 further on.
__device__ __forceinline__ PairPlace eight_heads_on(const DecodeParams& p, const PairPlace& place, bool live) {
  return {place.data + p.out_head_stride, place.scale + p.scale_group_stride * 4, live};
}

// 8 dims of a head, cast together with those of the 3 other lanes that hold the group.
__device__ __forceinline__ void store_pair(const PairPlace& place, const float (&x)[8], OutputFactor factor, int c) {
  const int e = shared_exponent(x, factor.value);
  const float f = factor.value * format::inverse_power_of_two(e);
  const uint2 codes = {e4m3x4(x[0] * f, x[1] * f, x[2] * f, x[3] * f), e4m3x4(x[4] * f, x[5] * f, x[6] * f, x[7] * f)};
  if (place.live) {
    *reinterpret_cast<uint2*>(place.data) = factor.zero ? uint2{0, 0} : codes;
    if (c == 0) *place.scale = static_cast<uint8_t>(e + 127);
  }
}

__device__ __forceinline__ void store_plain(const DecodeParams& p, int token, int head, const float (&x)[8],
                                            OutputFactor factor, int first_dim) {
  if (head >= p.live_heads) return;
  const auto value = [&](int i) { return factor.zero ? 0 : x[i] * factor.value; };
  const int64_t at = token * p.out_token_stride + head * p.out_head_stride + first_dim;
  if (p.output == MEGAMLA_OUTPUT_BF16) {
    uint32_t* out = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out) + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = bf16x2_round(value(2 * i), value(2 * i + 1));
  } else {
    float2* out = reinterpret_cast<float2*>(static_cast<float*>(p.out) + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = {value(2 * i), value(2 * i + 1)};
  }
}

// Sum without sink -> factor of the accumulators; m in base-2 units. Negative: zeros, whatever the accumulators are;
// for a row without a key, and for a position outside the table.
__device__ __forceinline__ float output_factor(const DecodeParams& p, bool outside, int head, float sink, float m,
                                               float sum) {
  if (sum == 0 || outside) return -1;
  float total = sum;
  if (p.sink != nullptr && head < p.live_heads) total += exp2f(sink * 1.44269504F - m);
  return __fdividef(kKeyUnshift, total);
}
__device__ __forceinline__ float output_factor(const DecodeParams& p, bool outside, int head, float m, float sum) {
  const bool has_sink = p.sink != nullptr && head < p.live_heads;
  return output_factor(p, outside, head, has_sink ? p.sink[head * p.sink_stride] : 0, m, sum);
}

__device__ __forceinline__ void store_lse(const DecodeParams& p, int token, bool outside, int head, float m,
                                          float sum) {
  if (p.lse == nullptr || head >= p.live_heads) return;
  const float lse = sum == 0  ? __int_as_float(0x7f800000)
                    : outside ? __int_as_float(0x7fc00000)
                              : 0.69314718F * (m + log2f(sum));
  p.lse[token * p.lse_token_stride + head * p.lse_head_stride] = lse;
}

}  // namespace megamla::cuda
