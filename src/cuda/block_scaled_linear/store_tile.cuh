// A tile's sums, which the blocks of a cluster hold in parts, to y: added in the order of the blocks, then rounded.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/mma.cuh"
#include "cuda/block_scaled_linear/tile_shape.hpp"
#include "cuda/record_encode.cuh"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"

namespace megamla::cuda::linear {

// A warp stores 128 rows of a token, four a lane; eight lanes hold an MXFP8 group.
constexpr int kLaneRows = 4;
constexpr int kGroupLanes = format::kCastGroup / kLaneRows;
static_assert(32 * kLaneRows == kTileRows);

template <class T>
__device__ inline void store_rows(T* to, const float (&v)[kLaneRows], int64_t rows, bool aligned) {
  T values[kLaneRows];
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = v[i];
    } else {
      values[i] = format::to_bf16(v[i]);
    }
  }
  if (aligned && rows >= kLaneRows) {
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
    } else {
      *reinterpret_cast<uint2*>(to) = {values[0].bits | (uint32_t{values[1].bits} << 16),
                                       values[2].bits | (uint32_t{values[3].bits} << 16)};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    if (i < rows) to[i] = values[i];
  }
}

// All lanes of the warp call; `token` beyond the last gets the scale bytes of padding.
__device__ inline void store_mxfp8(const LinearArgs& a, float (&v)[kLaneRows], int64_t token, int64_t column,
                                   bool row_there) {
  float largest = 0;
#pragma unroll
  for (float& x : v) {
    x = format::round_to_bf16(x);
    largest = fmaxf(largest, fabsf(x));
  }
  largest = group_max<kGroupLanes>(largest);
  if (!row_there) return;
  const int e = format::detail::is_finite(largest) ? format::group_exponent(largest) : 120;
  const int64_t columns = a.groups * a.out;
  const bool token_there = token < a.tokens;
  if (threadIdx.x % kGroupLanes == 0) {
    a.y_scale[format::f8_128x4_index(columns / format::kCastGroup, token, column / format::kCastGroup)] =
        token_there ? static_cast<uint8_t>(e + 127) : uint8_t{0};
  }
  if (!token_there) return;
  const float factor = format::inverse_power_of_two(e);
  const uint32_t codes = to_e4m3x4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor);
  uint8_t* to = static_cast<uint8_t*>(a.y) + token * columns + column;
  if (a.y_aligned) {
    *reinterpret_cast<uint32_t*>(to) = codes;
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) to[i] = static_cast<uint8_t>(codes >> (8 * i));
}

__device__ inline void store_lane(const LinearArgs& a, float (&v)[kLaneRows], int64_t token, int64_t group,
                                  int64_t row) {
  if (a.output == MEGAMLA_LINEAR_OUT_MXFP8) {
    store_mxfp8(a, v, token, group * a.out + row, row < a.out);
    return;
  }
  if (row >= a.out) return;
  const int64_t at = token * a.y_token + group * a.y_group + row;
  if (a.output == MEGAMLA_LINEAR_OUT_F32) {
    store_rows(static_cast<float*>(a.y) + at, v, a.out - row, a.y_aligned);
  } else {
    store_rows(static_cast<format::Bf16*>(a.y) + at, v, a.out - row, a.y_aligned);
  }
}

// `sums` [token][row] of this block; every block of the cluster has its own in the same place. The blocks take the
// tokens in turn.
template <class Shape>
__device__ inline void store_tile(const LinearArgs& a, const float* sums, int rank, int64_t first_token, int64_t group,
                                  int64_t first_row) {
  constexpr int kTogether = Shape::kTokens >= 32 ? 4 : 1;  // tokens of a warp whose loads are on their way at once
  const int lane_row = static_cast<int>(threadIdx.x) % 32 * kLaneRows;
  const int64_t tokens = a.tokens - first_token < Shape::kTokens ? a.tokens - first_token : Shape::kTokens;
  const int warp = rank * Shape::kWarps + static_cast<int>(threadIdx.x) / 32;
  const int warps = a.splits * Shape::kWarps;
  for (int64_t token = warp; token < tokens; token += kTogether * warps) {
    float v[kTogether][kLaneRows] = {};
    for (int from = 0; from < a.splits; ++from) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t t = token + i * warps;
        if (t >= tokens) continue;
        const float* mine = sums + t * Shape::kSumPitch + lane_row;
        const float4 part = a.splits == 1 ? *reinterpret_cast<const float4*>(mine) : load_of_block(mine, from);
        v[i][0] += part.x;
        v[i][1] += part.y;
        v[i][2] += part.z;
        v[i][3] += part.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int64_t t = token + i * warps;
      if (t < tokens) store_lane(a, v[i], first_token + t, group, first_row + lane_row);
    }
  }
  if (a.output != MEGAMLA_LINEAR_OUT_MXFP8 || first_token + tokens < a.tokens) return;
  for (int64_t token = a.tokens + warp; token < format::round_up(a.tokens, 128); token += warps) {
    float zeros[kLaneRows] = {};
    store_lane(a, zeros, token, group, first_row + lane_row);
  }
}

}  // namespace megamla::cuda::linear
