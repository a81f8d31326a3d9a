#include "plan/decode_split.hpp"

#include <algorithm>

namespace megamla::plan {
namespace {

// What a row costs beside its key tiles, in tiles: its end, and the merge of a shared row.
constexpr int64_t kEndTiles = 1;
constexpr int64_t kMergeTiles = 2;

}  // namespace

DecodeSplit decode_split(const DecodeStep& step, const DecodeDevice& device) {
  const auto waves = [](int64_t items, int64_t blocks) { return (items + blocks - 1) / blocks; };
  const int64_t row = step.key_tiles + kEndTiles;
  DecodeSplit best{1, std::min<int64_t>(step.items, device.blocks), step.items};
  if (step.batch_invariant) return best;
  int64_t fewest_tiles = waves(step.items, device.blocks) * row;
  for (int n = 2; n <= kMostClusterBlocks; ++n) {
    const int64_t clusters = device.clusters[static_cast<size_t>(n)];
    // Few items: all shared, no more blocks than they need. Many: whole waves, and what is left over.
    const int64_t blocks = std::min(step.items, clusters) * n;
    if (blocks == 0) break;
    const int64_t whole = step.items <= clusters ? 0 : step.items / blocks * blocks;
    const int64_t shared = step.items - whole;
    if (shared == 0 || shared > clusters) continue;
    const int64_t tiles = whole / blocks * row + (step.key_tiles + n - 1) / n + kMergeTiles;
    if (tiles >= fewest_tiles) continue;
    fewest_tiles = tiles;
    best = {n, blocks, whole};
  }
  return best;
}

}  // namespace megamla::plan
