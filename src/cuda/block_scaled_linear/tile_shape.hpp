// The shape of a block's work, and how the columns of a call are split over blocks: pure functions of shapes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/linear_shape.hpp"

namespace megamla::cuda::linear {

constexpr int kTileRows = 128;     // weight rows of a block
constexpr int kChunkColumns = 64;  // columns that a warp multiplies with one 16-byte run of codes per lane and row
constexpr int kManyTokens = 64;    // from here on no tile of tokens is smaller
constexpr int kMaxSplits = 8;      // blocks of a cluster that any GPU takes

// kTokenTiles of 8 tokens, kWeightBytes a weight.
template <int kTokenTiles, int kWeightBytes>
struct TileShape {
  static constexpr int kTokens = 8 * kTokenTiles;
  // Many tokens: 32 rows a warp, so that a token's values are read from shared memory half as often.
  static constexpr int kRowTiles = kTokenTiles >= 8 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kRuns = 2 * kRowTiles;                 // weight rows of a lane
  static constexpr int kWarps = kTileRows / (16 * kRowTiles);
  static constexpr int kThreads = 32 * kWarps;
  // Chunks between two barriers; as many are on their way from memory, in registers.
  static constexpr int kChunks = (kTokenTiles <= 2 ? 4 : kTokenTiles <= 8 ? 2 : 1) / kWeightBytes;
  static_assert(kChunks > 0);
  static constexpr int kColumns = kChunks * kChunkColumns;
  static constexpr int kUnits = kChunks * kTokenTiles * 64;  // runs of 8 values of x
  static constexpr int kThreadUnits = (kUnits + kThreads - 1) / kThreads;
  // Parts of them that are in registers one after the other.
  static constexpr int kXParts = kThreadUnits <= 4 ? 1 : kChunks == 1 ? 2 : 4;
  // Sums are kept as [token][row]; four floats more a token keep a warp's stores apart.
  static constexpr int kSumPitch = kTileRows + 4;
  static constexpr int kXBytes = 2 * kUnits * 16;
  static constexpr int kSumBytes = kTokens * kSumPitch * 4;
  static constexpr int kSharedBytes = kXBytes > kSumBytes ? kXBytes : kSumBytes;
};

// Tiles of 8 tokens of a block: few, so that few tokens multiply little padding.
inline int token_tiles(int64_t tokens, int most) {
  int tiles = 1;
  while (tiles < most && 8 * tiles < tokens) tiles *= 2;
  return tiles;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks that share the columns of one tile: enough to fill two blocks an SM, none with fewer than 4 chunks.
inline int splits_for(int64_t tiles, int64_t columns, int multiprocessors) {
  const int64_t wanted = 2 * int64_t{multiprocessors} / std::max<int64_t>(tiles, 1);
  const int64_t most = std::min<int64_t>(kMaxSplits, ceil_div(columns, kChunkColumns) / 4);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
}

}  // namespace megamla::cuda::linear
