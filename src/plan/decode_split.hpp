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

}  // namespace megamla::plan
