// Which tile a block works on, and on which of its columns.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/tile_shape.hpp"

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

// Tiles that run at the same time share their rows and their tokens through L2: bands of up to 8 token tiles, in a band
// the token tiles of a row tile one after the other.
template <class Shape>
__device__ inline TilePlace tile_place(const LinearArgs& a, int64_t tile, int rank) {
  constexpr int64_t kBand = 8;
  const int64_t first_of_band = tile / (kBand * a.row_tiles) * kBand;
  const int64_t in_band = tile - first_of_band * a.row_tiles;
  const int64_t band = min(kBand, a.token_tiles - first_of_band);
  const int64_t row_tile = in_band / band;
  TilePlace p{};
  p.first_token = (first_of_band + in_band % band) * Shape::kTokens;
  p.group = row_tile / a.group_row_tiles;
  p.first_row = row_tile % a.group_row_tiles * Shape::kRows;
  const auto in = static_cast<int>(a.in);
  const int pieces = (in + kSplitColumns - 1) / kSplitColumns;
  p.begin = pieces * rank / a.splits * kSplitColumns;
  p.end = min(pieces * (rank + 1) / a.splits * kSplitColumns, in);
  return p;
}

}  // namespace megamla::cuda::linear
