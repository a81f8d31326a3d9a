#include "plan/decode_split.hpp"

#include <algorithm>

namespace megamla::plan {
namespace {

// What a row costs beside its key tiles, in tiles: its end, and the merge of a row that a cluster shares.
constexpr int64_t kEndTiles = 1;
constexpr int64_t kMergeTiles = 2;
// Of a block that has parts of rows: leaving them, and merging one.
constexpr int64_t kPartTiles = 3;
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
  if (step.items <= device.clusters[static_cast<size_t>(n)]) {
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

constexpr int kInvariantShares = 5;
constexpr int64_t kInvariantKeys = 128;  // that a share has at least
// In keys: what a block costs apart from its keys, and the least that is worth a block. n blocks on an SM take the time
// of n + kUnfilled / n that together fill it.
constexpr int64_t kBlockKeys = 40;
constexpr int64_t kLeastKeys = 64;
constexpr double kUnfilled = 0.8;

// Of `blocks` blocks in units of one block's keys on a full SM: full waves, and a last one that is faster the fewer
// blocks an SM has of it.
double waves(int64_t blocks, const ShareDevice& device) {
  const auto time = [](int64_t on_an_sm) {
    const auto n = static_cast<double>(on_an_sm);
    return on_an_sm == 0 ? 0 : n + kUnfilled / n;
  };
  const int64_t resident = int64_t{device.sms} * device.blocks_per_sm;
  const int64_t full = blocks / resident;
  const int64_t rest = blocks % resident;
  return static_cast<double>(full) * time(device.blocks_per_sm) + time((rest + device.sms - 1) / device.sms);
}

int best_shares(const ShareStep& step, const ShareDevice& device) {
  int best = 1;
  double least = 0;
  for (int n = 1; n <= kMostShares; ++n) {
    if (n > 1 && step.keys < n * kLeastKeys) break;
    const double keys = static_cast<double>(step.keys) / n + static_cast<double>(kBlockKeys);
    const double time = waves(step.items * n, device) * keys;
    if (n == 1 || time < least) best = n, least = time;
  }
  return best;
}

}  // namespace

DecodeShares decode_shares(const ShareStep& step, const ShareDevice& device) {
  const int shares = step.batch_invariant
                         ? static_cast<int>(std::clamp<int64_t>(step.keys / kInvariantKeys, 1, kInvariantShares))
                         : best_shares(step, device);
  const int64_t wanted = (step.items * shares + device.sms - 1) / device.sms;
  const auto resident = static_cast<int>(std::clamp<int64_t>(wanted, 1, device.blocks_per_sm));
  const int room = device.shared_bytes / resident - device.reserved_bytes - device.fixed_bytes;
  return {shares, std::clamp(room / device.stage_bytes, 2, device.most_stages)};
}

}  // namespace megamla::plan
