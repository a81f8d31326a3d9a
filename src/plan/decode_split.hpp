// How a decode step is spread over the SMs of a GPU: a pure function of shape and device.
#pragma once

#include <array>
#include <cstdint>

namespace megamla::plan {

// The kernel for many heads: one block an SM, each walking rows or parts of rows.

constexpr int kMostClusterBlocks = 16;

// What a GPU holds at once of the attention kernel.
struct DecodeDevice {
  int blocks;                                          // one per SM
  std::array<int, kMostClusterBlocks + 1> clusters{};  // [n]: clusters of n blocks, n >= 2
};

struct DecodeStep {
  int64_t items;      // tokens times the blocks that a token needs for its heads
  int64_t key_tiles;  // of a row at full list widths
  bool ragged;        // rows may be shorter than that: only the device knows
  bool batch_invariant;
  int part_places;  // parts of rows that a block may hold in global memory at once
};

enum class Spread : int32_t {
  // Whole rows in turn; few rows, or those of the last wave, shared by the blocks of clusters, which merge what they
  // have through each other's shared memory.
  kRows,
  // The tiles of all rows dealt out evenly, one row after the other, by the lengths that the device finds; whole rows
  // in turn if that is as good. Parts of rows are merged through global memory, in order, by the block that comes last.
  kKeys,
  // Batch-invariant mode: every row in the same segments, whatever its company. Merged as above; or, with clusters of
  // as
  // many blocks as a row has segments, as kRows: by the same sums in the same order.
  kSegments,
};

struct DecodeSplit {
  Spread spread;
  int64_t blocks;  // of the grid, a multiple of cluster
  // kRows.
  int cluster;          // blocks that share one item's keys
  int64_t whole_items;  // the first items, each attended by one block; the others are shared by a cluster each
  // kSegments, and rows of kRows that are cut alike.
  int segments;        // of a row; 1: rows are not
  int segment_tiles;   // of a segment
  int block_segments;  // of a block
};

// The spread that takes the fewest tiles one after the other, of what is resident at once. The segments of a row depend
// on its key_tiles alone.
DecodeSplit decode_split(const DecodeStep& step, const DecodeDevice& device);

constexpr int kMostSegments = 5;
// Of a grid of parts of rows: blocks, in all and for each row.
constexpr int kMostBlocks = 132;
constexpr int kBlocksOfARow = kMostSegments;

// The kernel for few heads: every row is shared by the same number of blocks (a cluster) and their crews of warps,
// which take its keys in steps. A block of kSmWarps warps fills an SM, of half of them half an SM.
constexpr int kMostShares = 8;
constexpr int kSmWarps = 16;
struct ShareDevice {
  int sms;
  int crew_warps;
  std::array<int, kMostShares + 1> clusters{};  // [n]: clusters of n blocks of kSmWarps warps, n >= 2, at once
};
struct ShareStep {
  int64_t items;
  int64_t row_steps;  // at full list widths
  bool batch_invariant;
};
struct DecodeShares {
  int blocks;  // of a row
  int warps;   // of a block
};
// Whether so many rows are as fast as rows can be: all at once, with no more than a step for every crew.
bool fully_shared(const ShareStep& step, const ShareDevice& device);
// In batch-invariant mode a function of row_steps alone.
DecodeShares decode_shares(const ShareStep& step, const ShareDevice& device);

}  // namespace megamla::plan
