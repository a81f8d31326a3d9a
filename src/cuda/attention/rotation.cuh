// Positions, and the rotation of query chunks.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/bf16x2.cuh"
#include "format/kv_record.hpp"
#include "format/rope.hpp"

namespace megamla::cuda {

struct Rotation {
  const float* cos_sin;  // of the row's position; null: none
  bool outside;          // the position is no row of the table
};

// A position as it comes from memory, not looked at yet.
struct ComingPosition {
  int64_t wide;
  int32_t narrow;
};
__device__ __forceinline__ ComingPosition load_position(const AttentionParams& p, int token) {
  ComingPosition position{0, 0};
  if (p.cos_sin == nullptr || token < 0) return position;
  if (p.positions_64 != 0) {
    position.wide = static_cast<const int64_t*>(p.positions)[token * p.positions_stride];
  } else {
    position.narrow = static_cast<const int32_t*>(p.positions)[token * p.positions_stride];
  }
  return position;
}
__device__ __forceinline__ Rotation rotation_of(const AttentionParams& p, const ComingPosition& coming) {
  if (p.cos_sin == nullptr) return {nullptr, false};
  const int64_t position = p.positions_64 != 0 ? coming.wide : coming.narrow;
  if (position < 0 || position >= p.cos_sin_rows) return {nullptr, true};
  return {p.cos_sin + position * p.cos_sin_stride, false};
}

__device__ __forceinline__ float sum_of_squares(uint4 v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum += bf16x2_low(words[i]) * bf16x2_low(words[i]) + bf16x2_high(words[i]) * bf16x2_high(words[i]);
  return sum;
}

// Four pairs with their cosines and sines.
__device__ __forceinline__ uint4 rotate_pairs(uint4 v, float4 cosines, float4 sines) {
  const float c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
  const float s[4] = {sines.x, sines.y, sines.z, sines.w};
  uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const format::Pair y = format::rotate({bf16x2_low(words[i]), bf16x2_high(words[i])}, c[i], s[i]);
    words[i] = bf16x2_round(y.x0, y.x1);
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace megamla::cuda
