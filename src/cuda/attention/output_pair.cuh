// Places and codes of the fp8 output pair (contract section 7).
//
// Of a head and a group of 32 dims a thread stores the 8 dims from 8 c on, c = lane % 4; the 8 heads of an output group
// are the lanes / 4 of a warp.
#pragma once

#include <cuda_fp8.h>

#include "cuda/attention/params.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "megamla/decode_attention.h"

namespace megamla::cuda {

__device__ __forceinline__ uint32_t e4m3x2(float a, float b) {
  return __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t e4m3x4(float a, float b, float c, float d) {
  return e4m3x2(a, b) | (e4m3x2(c, d) << 16);
}

// Where a thread's dims of one head go in the output pair, from group 0 on.
struct PairPlace {
  uint8_t* data;
  uint8_t* scale;
  bool live;
};
__device__ __forceinline__ PairPlace pair_place(const AttentionParams& p, int token, int head, int group, int c) {
  const int lane_head = head % format::kGroupHeads;
  const int64_t output_group = head / format::kGroupHeads;
  const format::PackedScale at = format::packed_scale(format::o_chunk(lane_head, group * 32));
  int32_t* word = p.out_scale + token + at.word * p.scale_word_stride + output_group * p.scale_group_stride;
  return {static_cast<uint8_t*>(p.out) + token * p.out_token_stride + output_group * p.out_head_stride +
              format::o_chunked_index(lane_head, group * 32) + c * 8,
          reinterpret_cast<uint8_t*>(word) + at.shift / 8, head < p.live_heads};
}

// The exponent of the group of which four lanes hold 8 values each, from the products of those with `factor`.
__device__ __forceinline__ int shared_exponent(const float (&x)[8], float factor) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x[i]));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
  return format::output_group_exponent(amax * factor);
}

__device__ __forceinline__ void to_next_group(const AttentionParams& p, PairPlace& place) {
  constexpr int64_t kGroupBytes = format::o_chunked_index(0, 32) - format::o_chunked_index(0, 0);
  constexpr int64_t kGroupWords = format::packed_scale(format::o_chunk(0, 32)).word;
  place.data += kGroupBytes;
  place.scale += kGroupWords * 4 * p.scale_word_stride;
}

}  // namespace megamla::cuda
