#include "plan/decode_split.hpp"

#include <algorithm>

namespace megamla::plan {
namespace {

// What a row costs beside its key tiles, in tiles: its end, and the merge of a row that a cluster shares.
constexpr int64_t kEndTiles = 1;
constexpr int64_t kMergeTiles = 2;
// Of a block that has parts of rows: leaving them, and merging one.
constexpr int64_t kPartTiles = 6;
// Rows in segments are attended by clusters as long as that is faster than parts in memory (at 32 rows 30 us instead of
// 41): in so many waves.
constexpr int64_t kMostClusterWaves = 2;
// A segment has two tiles at least.
constexpr int64_t kLeastSegmentTiles = 2;

int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

int64_t most_blocks(const DecodeDevice& device) { return std::min(device.blocks, kMostBlocks); }

DecodeSplit rows(int cluster, int64_t blocks, int64_t whole_items) {
  return {Spread::kRows, blocks, cluster, whole_items, 1, 0, 0};
}

DecodeSplit by_segments(const DecodeStep& step, const DecodeDevice& device) {
  const auto n = static_cast<int>(std::clamp<int64_t>(step.key_tiles / kLeastSegmentTiles, 1, kMostSegments));
  if (n == 1) return rows(1, std::min<int64_t>(step.items, device.blocks), step.items);
  const auto tiles = static_cast<int>(ceil_div(step.key_tiles, n));
  if (step.items <= kMostClusterWaves * device.clusters[static_cast<size_t>(n)]) {
    return {Spread::kRows, step.items * n, n, 0, n, tiles, 0};
  }
  int64_t per_block = ceil_div(step.items * n, most_blocks(device));
  if (per_block > n && step.part_places < 2 * n - 1) per_block = ceil_div(per_block, n) * n;
  return {Spread::kSegments, ceil_div(step.items * n, per_block), 1, 0, n, tiles, static_cast<int>(per_block)};
}

}  // namespace

DecodeSplit decode_split(const DecodeStep& step, const DecodeDevice& device) {
  if (step.batch_invariant) return by_segments(step, device);
  const int64_t row = step.key_tiles + kEndTiles;
  DecodeSplit best = rows(1, std::min<int64_t>(step.items, device.blocks), step.items);
  int64_t fewest_tiles = ceil_div(step.items, device.blocks) * row;
  for (int n = 2; n <= kMostClusterBlocks; ++n) {
    const int64_t clusters = device.clusters[static_cast<size_t>(n)];
    // Few items: all shared, no more blocks than they need. Many: whole waves, and what is left over.
    const int64_t blocks = std::min(step.items, clusters) * n;
    if (blocks == 0) break;
    const int64_t whole = step.items <= clusters ? 0 : step.items / blocks * blocks;
    const int64_t shared = step.items - whole;
    if (shared == 0 || shared > clusters) continue;
    const int64_t tiles = whole / blocks * row + ceil_div(step.key_tiles, n) + kMergeTiles;
    if (tiles >= fewest_tiles) continue;
    fewest_tiles = tiles;
    best = rows(n, blocks, whole);
  }
  // Rows that are all shared are the fastest way even where some are short.
  const bool all_shared = best.whole_items == 0;
  const int64_t blocks = std::min(most_blocks(device), step.items * kBlocksOfARow);
  const int64_t by_keys = ceil_div(step.items * row, blocks) + kPartTiles;
  if (by_keys < fewest_tiles || (step.ragged && !all_shared)) return {Spread::kKeys, blocks, 1, step.items, 1, 0, 0};
  return best;
}

namespace {

constexpr int kInvariantShares = 2;

// As many blocks of a whole SM as are resident at once, and have a step for each of their crews.
int most_shares(const ShareStep& step, const ShareDevice& device) {
  const int64_t crews = kSmWarps / device.crew_warps;
  int shares = 1;
  for (int n = 2; n <= kMostShares; ++n) {
    if (step.row_steps > (n - 1) * crews && step.items <= device.clusters[static_cast<size_t>(n)]) shares = n;
  }
  return shares;
}

}  // namespace

bool fully_shared(const ShareStep& step, const ShareDevice& device) {
  if (step.batch_invariant || step.items > device.sms) return false;
  return int64_t{most_shares(step, device)} * (kSmWarps / device.crew_warps) >= step.row_steps;
}

DecodeShares decode_shares(const ShareStep& step, const ShareDevice& device) {
  if (step.batch_invariant) {
    const int64_t crews = kSmWarps / 2 / device.crew_warps;
    return {static_cast<int>(std::clamp<int64_t>(step.row_steps / crews, 1, kInvariantShares)), kSmWarps / 2};
  }
  if (step.items > device.sms) return {1, kSmWarps / 2};
  return {most_shares(step, device), kSmWarps};
}

}  // namespace megamla::plan
