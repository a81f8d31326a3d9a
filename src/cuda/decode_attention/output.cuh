// The end of a row: division by the sum, rotation back, and the cast into the output pair (or bf16 / fp32), straight
// from accumulator registers.
//
// Of a head and a group of 32 dims a thread holds the 8 consecutive dims from 8 c on, c = lane % 4 (see tiles.cuh); the
// 8 heads of an output group are the lanes / 4 of a warp.
#pragma once

#include "cuda/attention/output_pair.cuh"
#include "cuda/decode_attention/query.cuh"

namespace megamla::cuda {

struct OutputRow {
  int token;
  const float* cos_sin;  // null: no rotation
  bool outside;          // the position is no row of the table
};

// Dims 448 + 8 * eighth onwards.
__device__ __forceinline__ void rotate_back(float (&x)[8], const float* cos_sin, int eighth) {
  const float4 cosines = *reinterpret_cast<const float4*>(cos_sin + eighth * 4);
  const float4 sines = *reinterpret_cast<const float4*>(cos_sin + format::kRopeDim / 2 + eighth * 4);
  const float c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
  const float s[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const format::Pair y = format::rotate_back({x[2 * i], x[2 * i + 1]}, c[i], s[i]);
    x[2 * i] = y.x0, x[2 * i + 1] = y.x1;
  }
}

// 8 dims of a head, cast together with those of the 3 other lanes that hold the group; moves on to the next group.
// `zero`: x may be NaN and is not to be looked at (the factor is 0 then, and the group's scale that of zeros).
__device__ __forceinline__ void store_pair(const DecodeParams& p, PairPlace& place, const float (&x)[8], float factor,
                                           bool zero, int c) {
  const int e = shared_exponent(x, factor);
  const float f = factor * format::inverse_power_of_two(e);
  const uint2 codes = {e4m3x4(x[0] * f, x[1] * f, x[2] * f, x[3] * f), e4m3x4(x[4] * f, x[5] * f, x[6] * f, x[7] * f)};
  if (place.live) {
    *reinterpret_cast<uint2*>(place.data) = zero ? uint2{0, 0} : codes;
    if (c == 0) *place.scale = static_cast<uint8_t>(e + 127);
  }
  to_next_group(p, place);
}

__device__ __forceinline__ void store_plain(const DecodeParams& p, int token, int head, const float (&x)[8],
                                            float factor, bool zero, int first_dim) {
  if (head >= p.live_heads) return;
  const auto value = [&](int i) { return zero ? 0 : x[i] * factor; };
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

// Groups 14 and 15 are the rotated ones.
__device__ __forceinline__ void rotate_back_group(const OutputRow& row, float (&x)[8], int group, int c) {
  if (group >= format::kNopeDim / 32 && row.cos_sin != nullptr) {
    rotate_back(x, row.cos_sin, (group - format::kNopeDim / 32) * 4 + c);
  }
}

// Sum without sink -> factor of the accumulators; m in base-2 units.
__device__ __forceinline__ float output_factor(const DecodeParams& p, const OutputRow& row, int head, float m,
                                               float sum) {
  if (sum == 0 || row.outside) return 0;
  float total = sum;
  if (p.sink != nullptr && head < p.live_heads) total += exp2f(p.sink[head * p.sink_stride] * 1.44269504F - m);
  return __fdividef(kKeyUnshift, total);
}

__device__ __forceinline__ void store_lse(const DecodeParams& p, const OutputRow& row, int head, float m, float sum) {
  if (p.lse == nullptr || head >= p.live_heads) return;
  const float lse = sum == 0      ? __int_as_float(0x7f800000)
                    : row.outside ? __int_as_float(0x7fc00000)
                                  : 0.69314718F * (m + log2f(sum));
  p.lse[row.token * p.lse_token_stride + head * p.lse_head_stride] = lse;
}

}  // namespace megamla::cuda
