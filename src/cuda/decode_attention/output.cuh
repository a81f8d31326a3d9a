// The end of a row: division by the sum, rotation back, and the cast into the output pair (or bf16 / fp32), straight
// from accumulator registers.
//
// Of a head and a group of 32 dims a thread holds the 8 consecutive dims from 8 c on, c = lane % 4 (see tiles.cuh); the
// 8 heads of an output group are the lanes / 4 of a warp.
#pragma once

#include "cuda/decode_attention/query.cuh"
#include "format/output_cast.hpp"
#include "megamla/decode_attention.h"

namespace megamla::cuda {

// Dims 448 + 8 * eighth onwards.
__device__ __forceinline__ void rotate_back(float (&x)[8], uint32_t cos_sin, int eighth) {
  float c[4], s[4];
  load_rotation(cos_sin, eighth, c, s);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const format::Pair y = format::rotate_back({x[2 * i], x[2 * i + 1]}, c[i], s[i]);
    x[2 * i] = y.x0, x[2 * i + 1] = y.x1;
  }
}

__device__ __forceinline__ uint32_t e4m3x4(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | (high << 16);
}

// What output_factor told.
struct OutputFactor {
  float value;
  bool zero;
  __device__ explicit OutputFactor(float told) : value(fmaxf(told, 0)), zero(told < 0) {}
};

// Where a thread's dims of a head go in the output pair.
struct PairPlace {
  uint8_t* data;
  uint8_t* scale;
};
__device__ __forceinline__ PairPlace pair_place(const DecodeParams& p, int token, int head, int group, int c) {
  const int lane_head = head % format::kGroupHeads;
  const int64_t output_group = head / format::kGroupHeads;
  const format::PackedScale at = format::packed_scale(format::o_chunk(lane_head, group * 32));
  int32_t* word = p.out_scale + token + at.word * p.scale_word_stride + output_group * p.scale_group_stride;
  return {static_cast<uint8_t*>(p.out) + token * p.out_token_stride + output_group * p.out_head_stride +
              format::o_chunked_index(lane_head, group * 32) + c * 8,
          reinterpret_cast<uint8_t*>(word) + at.shift / 8};
}
// To the next group of 32 dims; to the head 8 further on.
__device__ __forceinline__ void next_group(const DecodeParams& p, PairPlace& place) {
  constexpr int64_t kGroupBytes = format::o_chunked_index(0, 32) - format::o_chunked_index(0, 0);
  constexpr int64_t kGroupWords = format::packed_scale(format::o_chunk(0, 32)).word;
  place.data += kGroupBytes;
  place.scale += kGroupWords * 4 * p.scale_word_stride;
}
__device__ __forceinline__ PairPlace eight_heads_on(const DecodeParams& p, const PairPlace& place) {
  return {place.data + p.out_head_stride, place.scale + p.scale_group_stride * 4};
}

// 8 dims of a head, cast together with those of the 3 other lanes that hold the group.
__device__ __forceinline__ void store_pair(const PairPlace& place, const float (&x)[8], OutputFactor factor, bool live,
                                           int c) {
  float larger[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) larger[i] = fmaxf(fabsf(x[i]), fabsf(x[4 + i]));
  float amax = fmaxf(fmaxf(larger[0], larger[1]), fmaxf(larger[2], larger[3]));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
  const int e = format::output_group_exponent(amax * factor.value);
  const float f = factor.value * format::inverse_power_of_two(e);
  const uint2 codes = {e4m3x4(x[0] * f, x[1] * f, x[2] * f, x[3] * f), e4m3x4(x[4] * f, x[5] * f, x[6] * f, x[7] * f)};
  if (live) {
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
    for (int i = 0; i < 4; ++i) out[i] = pack_bf16(value(2 * i), value(2 * i + 1));
  } else {
    float2* out = reinterpret_cast<float2*>(static_cast<float*>(p.out) + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = {value(2 * i), value(2 * i + 1)};
  }
}

// Sum without sink -> factor of the accumulators; m in base-2 units. Negative: zeros, whatever the accumulators are;
// for a row without a key, and for a position outside the table.
__device__ __forceinline__ float output_factor(const DecodeParams& p, bool outside, int head, float m, float sum) {
  if (sum == 0 || outside) return -1;
  float total = sum;
  if (p.sink != nullptr && head < p.live_heads) total += exp2f(p.sink[head * p.sink_stride] * 1.44269504F - m);
  return __fdividef(kKeyUnshift, total);
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
