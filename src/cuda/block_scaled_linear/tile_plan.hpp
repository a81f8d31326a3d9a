// Which tile a call takes and over how many blocks its columns are split: pure functions of shapes and the device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/tile_shape.hpp"

namespace megamla::cuda::linear {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline void set_tiles(LinearArgs& a, int rows, int tokens) {
  a.group_row_tiles = static_cast<uint32_t>(ceil_div(a.out, rows));
  a.row_tiles = a.group_row_tiles * static_cast<uint32_t>(a.groups);
  a.token_tiles = static_cast<uint32_t>(ceil_div(a.tokens, tokens));
  a.splits = 1;
}

// What a kernel's tile is, and how many clusters of 1 .. kMaxSplits of its blocks are resident at once.
struct Tile {
  int rows, tokens, blocks_per_sm;
  std::array<int, kMaxSplits + 1> clusters;
};

struct TileWork {
  int64_t tokens, groups, in, out;
  int weight_bytes, x_bytes;  // of a value
};

// Clocks that a call takes, roughly: what an SM reads (memory, L2) and multiplies, full waves of clusters, and the sums
// of a cluster through distributed shared memory. Rates are bytes per clock and SM measured on an H200.
inline int64_t estimated_clocks(const TileWork& w, const Tile& t, int splits) {
  constexpr int64_t kMemory = 18;
  constexpr int64_t kL2 = 30;
  constexpr int64_t kPeerMemory = 14;
  constexpr int64_t kStart = 1500;  // of a wave: the first loads' latency
  constexpr int64_t kMeet = 1500;   // of a cluster
  const int64_t weights = int64_t{kSplitColumns} * t.rows * w.weight_bytes;
  const int64_t x = int64_t{kSplitColumns} * t.tokens * w.x_bytes;
  const int64_t multiply = int64_t{kSplitColumns} / 16 * (t.rows / 64) * std::max(17, t.tokens / 2);
  const int64_t piece = t.blocks_per_sm * std::max({weights / kMemory, (weights + x) / kL2, multiply});
  const int64_t tiles = ceil_div(w.tokens, t.tokens) * w.groups * ceil_div(w.out, t.rows);
  const int64_t waves = ceil_div(tiles, t.clusters[static_cast<size_t>(splits)]);
  const int64_t peers = int64_t{t.rows} * t.tokens * 4 * (splits - 1) / splits;
  const int64_t merge = splits == 1 ? 0 : kMeet + t.blocks_per_sm * peers / kPeerMemory;
  return waves * (ceil_div(ceil_div(w.in, kSplitColumns), splits) * piece + kStart + merge);
}

// The same of the kernel that multiplies codes, whose bound is to issue the additions of products.
inline int64_t e4m3_clocks(const TileWork& w, const Tile& t, int splits) {
  constexpr int64_t kPiece = 1100;  // 128 columns, rows and tokens
  constexpr int64_t kL2 = 30;
  constexpr int64_t kPeerMemory = 14;
  constexpr int64_t kEnds = 3000;  // first loads, and the sums on their way out
  constexpr int64_t kMeet = 1500;
  const int64_t piece = std::max(kPiece * t.tokens / 128, kSplitColumns * (t.rows + t.tokens) / kL2);
  const int64_t tiles = ceil_div(w.tokens, t.tokens) * w.groups * ceil_div(w.out, t.rows);
  const int64_t waves = ceil_div(tiles, t.clusters[static_cast<size_t>(splits)]);
  const int64_t peers = int64_t{t.rows} * t.tokens * 4 * (splits - 1) / splits;
  const int64_t merge = splits == 1 ? 0 : kMeet + peers / kPeerMemory;
  return waves * (ceil_div(ceil_div(w.in, kSplitColumns), splits) * piece + kEnds + merge);
}

// At least two pieces of the columns each.
inline int best_splits(const TileWork& w, const Tile& t) {
  const int64_t most = std::clamp<int64_t>(ceil_div(w.in, kSplitColumns) / 2, 1, kMaxSplits);
  int best = 1;
  for (int splits = 2; splits <= most; ++splits) {
    if (t.clusters[static_cast<size_t>(splits)] == 0) continue;
    if (estimated_clocks(w, t, splits) < estimated_clocks(w, t, best)) best = splits;
  }
  return best;
}

}  // namespace megamla::cuda::linear
