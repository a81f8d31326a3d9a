// How a decode step is spread over the SMs of a GPU: a pure function of shape and device.
#pragma once

#include <array>
#include <cstdint>

namespace megamla::plan {

constexpr int kMostClusterBlocks = 16;

// What a GPU holds at once of the attention kernel.
struct DecodeDevice {
  int blocks;                                          // one per SM
  std::array<int, kMostClusterBlocks + 1> clusters{};  // [n]: clusters of n blocks, n >= 2
};

struct DecodeStep {
  int64_t items;      // tokens times the blocks that a token needs for its heads
  int64_t key_tiles;  // of a row at full list widths
  bool batch_invariant;
};

struct DecodeSplit {
  int cluster;          // blocks that share one item's keys
  int64_t blocks;       // of the grid, a multiple of cluster
  int64_t whole_items;  // the first items, each attended by one block; the others are shared by a cluster each
};

// Of the ways to share rows among the blocks of clusters of one size, the one that takes the fewest tiles one after the
// other: few items are all shared; of many the last wave's, by clusters that also walk the whole ones. Everything that
// is shared is resident at once. In batch-invariant mode nothing is shared, so that a row's sums do not depend on the
// number of rows.
DecodeSplit decode_split(const DecodeStep& step, const DecodeDevice& device);

// The kernel for few heads: several small blocks an SM; every row is shared by the same number of blocks (a cluster),
// which are not resident all at once where there are many.
struct ShareDevice {
  int sms;
  int shared_bytes;    // of an SM
  int reserved_bytes;  // of those, by a block
  int blocks_per_sm;   // that registers allow
  int fixed_bytes;     // of a block, beside its stages
  int stage_bytes;
  int most_stages;
};
struct ShareStep {
  int64_t items;
  int64_t keys;  // of a row at full list widths
  bool batch_invariant;
};
constexpr int kMostShares = 8;
struct DecodeShares {
  int blocks;  // of a row
  int stages;  // of a block
};
// In batch-invariant mode `blocks` is a constant. `stages` changes no bits.
DecodeShares decode_shares(const ShareStep& step, const ShareDevice& device);

}  // namespace megamla::plan
