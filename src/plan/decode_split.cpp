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

namespace {

constexpr int kInvariantShares = 4;
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
  const int shares = step.batch_invariant ? kInvariantShares : best_shares(step, device);
  const int64_t wanted = (step.items * shares + device.sms - 1) / device.sms;
  const auto resident = static_cast<int>(std::clamp<int64_t>(wanted, 1, device.blocks_per_sm));
  const int room = device.shared_bytes / resident - device.reserved_bytes - device.fixed_bytes;
  return {shares, std::clamp(room / device.stage_bytes, 2, device.most_stages)};
}

}  // namespace megamla::plan
