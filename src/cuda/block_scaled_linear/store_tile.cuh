// A tile's sums, which the blocks of a cluster hold in parts, to y: added in the order of the blocks, then rounded.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/tile_order.cuh"
#include "cuda/ptx/sync.cuh"
#include "cuda/record_encode.cuh"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"

namespace megamla::cuda::linear {

// A warp stores 128 rows of a token, four a lane; eight lanes hold an MXFP8 group.
constexpr int kLaneRows = 4;
constexpr int kRunRows = 32 * kLaneRows;
constexpr int kGroupLanes = format::kCastGroup / kLaneRows;

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

// Four rows as bf16.
__device__ inline void store_bf16(format::Bf16* to, uint2 four, int64_t rows, bool aligned) {
  if (aligned && rows >= kLaneRows) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(four.x), "r"(four.y) : "memory");
    return;
  }
  const uint32_t words[2] = {four.x, four.y};
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    if (i < rows) to[i] = format::Bf16{static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)))};
  }
}

// All lanes of the warp call, each with four rows of one token; `token` beyond the last gets the scale bytes of
// padding.
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

__device__ inline void add_part(const float4& part, float (&v)[kLaneRows]) {
  v[0] += part.x;
  v[1] += part.y;
  v[2] += part.z;
  v[3] += part.w;
}

// Four rows of a token, added over the blocks of the cluster in their order.
__device__ inline void add_parts(const float* mine, uint32_t splits, float (&v)[kLaneRows]) {
  float4 parts[kMaxSplits];
  const uint32_t here = ptx::shared_address(mine);
#pragma unroll
  for (uint32_t i = 0; i < kMaxSplits; ++i) {
    if (i < splits) parts[i] = ptx::load_cluster_4(ptx::cluster_address(here, i));
  }
#pragma unroll
  for (uint32_t i = 0; i < kMaxSplits; ++i) {
    if (i >= splits) break;
    add_part(parts[i], v);
  }
}

// Scale bytes of the tokens that MXFP8 is padded by are 0.
template <class Shape>
__device__ inline void store_padding(const LinearArgs& a, const TilePlace& p, int warp, int warps) {
  if (a.output != MEGAMLA_LINEAR_OUT_MXFP8) return;
  constexpr int kRuns = Shape::kRows / kRunRows;
  const auto padding = static_cast<int>(format::round_up(a.tokens, 128) - a.tokens);
  for (int item = warp; item < padding * kRuns; item += warps) {
    float zeros[kLaneRows] = {};
    const int row = item % kRuns * kRunRows + static_cast<int>(threadIdx.x) % 32 * kLaneRows;
    store_lane(a, zeros, a.tokens + item / kRuns, p.group, p.first_row + row);
  }
}

// `sums` [token][row] of this block, of tokens first .. first + count of the tile; every block of the cluster has its
// own in the same place. Warps of all blocks take the runs of 128 rows in turn.
template <class Shape, bool kCluster>
__device__ inline void store_tokens(const LinearArgs& a, const TilePlace& p, const float* sums, uint32_t rank,
                                    int first, int count, int thread) {
  constexpr int kRuns = Shape::kRows / kRunRows;
  const int64_t tokens = min(a.tokens - p.first_token - first, int64_t{count});
  const int warp = static_cast<int>(rank) * Shape::kMultiplierWarps + thread / 32;
  const int warps = (kCluster ? static_cast<int>(a.splits) : 1) * Shape::kMultiplierWarps;
  const int lane_row = thread % 32 * kLaneRows;
  for (int item = warp; item < tokens * kRuns; item += warps) {
    const int row = item % kRuns * kRunRows + lane_row;
    const float* mine = sums + item / kRuns * Shape::kSumPitch + row;
    float v[kLaneRows] = {};
    if constexpr (kCluster) {
      add_parts(mine, a.splits, v);
    } else {
      add_part(*reinterpret_cast<const float4*>(mine), v);
    }
    store_lane(a, v, p.first_token + first + item / kRuns, p.group, p.first_row + row);
  }
  if (tokens > 0 && p.first_token + first + tokens == a.tokens) {
    store_padding<Shape>(a, p, warp, warps);
  }
}

}  // namespace megamla::cuda::linear
