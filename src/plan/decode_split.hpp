// How a decode step is spread over the SMs of a GPU: a pure function of shape and device.
#pragma once

#include <array>
#include <cstdint>

namespace megamla::plan {

constexpr int kMostClusterBlocks = 8;

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

// Few items: every item is shared by the cluster that leaves the fewest tiles to a block, all items resident at once.
// Many: whole items in full waves, and the last wave's shared by pairs where that fits. In batch-invariant mode nothing
// is shared, so that a row's sums do not depend on the number of rows.
DecodeSplit decode_split(const DecodeStep& step, const DecodeDevice& device);

}  // namespace megamla::plan
