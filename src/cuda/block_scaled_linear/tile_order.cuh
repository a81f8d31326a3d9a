// Which tile a block works on, and on which of its columns.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/tile_shape.hpp"
#include "cuda/ptx/sync.cuh"

namespace megamla::cuda::linear {

struct TilePlace {
  int64_t group, first_row, first_token;
  int begin, end;  // columns
};

// Rows of the weights of a tile: the first, and how many there are from it on.
struct WeightRows {
  const uint8_t* first;
  int64_t pitch, count;  // bytes, rows
};
template <class Shape>
__device__ inline WeightRows weight_rows(const LinearArgs& a, const TilePlace& p) {
  const int64_t pitch = a.in * Shape::kWeightBytes;
  return {static_cast<const uint8_t*>(a.weight) + (p.group * a.out + p.first_row) * pitch, pitch, a.out - p.first_row};
}

// The tiles of this block, and its rank among the blocks of a tile. Clusters take one tile each.
struct TileWalk {
  const LinearArgs& a;
  uint32_t tile;
  __device__ explicit TileWalk(const LinearArgs& args)
      : a(args), tile(a.splits == 1 ? blockIdx.x : blockIdx.x / a.splits) {}
  __device__ bool more() const { return tile < a.row_tiles * a.token_tiles; }
  __device__ void advance() { tile += gridDim.x; }
  __device__ uint32_t rank() const { return a.splits == 1 ? 0 : blockIdx.x - tile * a.splits; }
};

// Tiles that run at the same time share their rows and their tokens through L2: bands of up to 8 token tiles, in a band
// the token tiles of a row tile one after the other. Few tokens wait for this arithmetic: no division without need.
template <class Shape>
__device__ inline TilePlace tile_place(const LinearArgs& a, const TileWalk& walk) {
  constexpr uint32_t kBand = 8;
  uint32_t row_tile = walk.tile;
  uint32_t token_tile = 0;
  if (a.token_tiles > 1) {
    const uint32_t first_of_band = walk.tile / (kBand * a.row_tiles) * kBand;
    const uint32_t in_band = walk.tile - first_of_band * a.row_tiles;
    const uint32_t band = min(kBand, a.token_tiles - first_of_band);
    row_tile = in_band / band;
    token_tile = first_of_band + in_band % band;
  }
  const uint32_t group = a.groups == 1 ? 0 : row_tile / a.group_row_tiles;
  TilePlace p{};
  p.first_token = int64_t{token_tile} * Shape::kTokens;
  p.group = group;
  p.first_row = int64_t{row_tile - group * a.group_row_tiles} * Shape::kRows;
  p.end = static_cast<int>(a.in);
  if (a.splits > 1) {
    const uint32_t pieces = (static_cast<uint32_t>(a.in) + kSplitColumns - 1) / kSplitColumns;
    p.begin = static_cast<int>(pieces * walk.rank() / a.splits * kSplitColumns);
    p.end = min(static_cast<int>(pieces * (walk.rank() + 1) / a.splits * kSplitColumns), p.end);
  }
  return p;
}

// While the kernel before this one ends: no kernel's result is read, but up to `columns` columns of the weights of the
// first tile come to L2. Weights that are just being written are read from there as they are by then.
template <class Shape>
__device__ inline void call_first_stages(const LinearArgs& a, int columns, int thread) {
  const TilePlace p = tile_place<Shape>(a, TileWalk(a));
  const WeightRows rows = weight_rows<Shape>(a, p);
  const int bytes = min(p.end - p.begin, columns) * Shape::kWeightBytes;
#pragma unroll
  for (int row = thread; row < Shape::kRows; row += kProducerThreads) {
    if (row < rows.count) ptx::call_to_l2(rows.first + row * rows.pitch + p.begin * Shape::kWeightBytes, bytes);
  }
}

}  // namespace megamla::cuda::linear
