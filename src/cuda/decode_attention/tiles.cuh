// Tile shapes, shared memory, and which rows and key tiles a block works on: read by every role.
#pragma once

#include <cstdint>

#include "cuda/attention/rotation.cuh"
#include "cuda/attention/tile.cuh"
#include "cuda/decode_attention/params.hpp"
#include "cuda/decode_attention/trace.cuh"
#include "cuda/ptx/sync.cuh"
#include "megamla/decode_attention.h"
#include "plan/decode_split.hpp"

namespace megamla::cuda {

constexpr int kStages = 2;
// Roles: two warpgroups of values (each owns 256 of the 512 output dims), one of scores, one of producers.
constexpr int kValueThreads = 256;
constexpr int kScoreThreads = 128;
constexpr int kProducerWarps = 4;
constexpr int kBatches = kTileKeys / 8 / kProducerWarps;  // of 8 keys, per warp and tile
constexpr int kThreads = kValueThreads + kScoreThreads + 32 * kProducerWarps;
constexpr int kQueryBlocks = kBlocks / 2;  // of Q in shared memory; the other dims are in the scores role's registers
// A key tile is handed to the scores role in parts: Q K^T of the first dims runs while the last ones are widened.
#ifndef MEGAMLA_DECODE_PARTS
#define MEGAMLA_DECODE_PARTS 2
#endif
constexpr int kParts = MEGAMLA_DECODE_PARTS;
constexpr int kPartDims = format::kHeadDim / kParts;
constexpr int kPartBlocks = kBlocks / kParts;
static_assert(kPartDims % 128 == 0);
// Raw records on their way: per producer warp two units of up to five columns, each 64 bytes of the warp's 16 records
// of a tile, and of scales.
constexpr int kColumnBytes = kBatches * 32 * 16;
constexpr int kMostUnitColumns = 5;
constexpr int kBatchScaleBytes = 8 * 32;
constexpr int kPlaceBytes = kMostUnitColumns * kColumnBytes + kBatches * kBatchScaleBytes;
constexpr int kLists = 4;    // tiles whose slots a producer warp holds or waits for
constexpr int kLengths = 8;  // rows whose lengths it holds or waits for: those of such tiles, this one and the next

// Key tiles are written by ordinary stores and read by the tensor cores: the writers fence, once a part. With
// MEGAMLA_DECODE_READERS_FENCE the readers do instead; writers have copies under way that a fence might wait for.
#ifdef MEGAMLA_DECODE_READERS_FENCE
constexpr bool kReadersFence = true;
#else
constexpr bool kReadersFence = false;
#endif

// Inside each group of 32 dims, for Q, keys and so for the columns of O: 16-byte chunk i holds the dims
// i, 4 + i, 8 + i, 12 + i, .. 28 + i. Fp4 codes unpack into such pairs (i, 4 + i) without a byte permute, and a thread
// of the values role, which has columns 8 i + 2 c and 8 i + 2 c + 1 of every i, has the 8 consecutive dims from 8 c on.

// The row whose slots a producer warp asks for, and the one after it; kept in shared memory, as it takes part a few
// times a row.
struct Walk {
  int32_t token;      // -1: no more rows
  int32_t tile, end;  // of its tiles, those that have not been asked for
  int32_t number;
  int32_t asked;  // the unit in which its lengths were asked for
  int32_t step;   // from a tile to the next
  int32_t padding[2];
};
// The tiles of a list whose slots a producer warp asks for one after the other: where each lane finds its slot of the
// next one, and what leads from there to that of the one after it.
struct alignas(16) Request {
  const int32_t* slots;
  int32_t entries;  // of the list from this one on
  int32_t keys;     // up to the list's length from the tile on; or, if that is not known, the tile's number
};
struct alignas(16) RequestStep {
  int64_t slots;
  int32_t keys;
  uint32_t kind;  // of the tiles: see Producer
};

// What the scores role asks for a row ahead.
struct ComingRow {
  int32_t length[2];
  ComingPosition position;
};

// A query row: 64 heads of a token, or a block's part of one. Its tiles are numbered by the full widths of its lists,
// window first, so that slots can be asked for before the lengths are known; tiles beyond a length are passed over. The
// blocks of a cluster take turns, or each has a segment.
struct Row {
  int token;  // -1: no more rows
  int first_head;
  int rank, ranks;  // of the blocks of a cluster
  int begin, end;   // tiles
  int step;         // from one to the next
  int parts;        // more than 1: blocks leave their parts in global memory
  int part;
  int alone;  // all parts are this block's
  int home;   // the block in which such a row begins
  int place;  // of this part
  __device__ __forceinline__ bool any() const { return token >= 0; }
};
constexpr int kRows = 4;

// Of a block where rows are dealt out by keys (deal.cuh): rows first .. last, of the first one the tiles from `begin`
// on, of the last one those below `end`.
struct PartsOfRow {
  int32_t home;   // the block in which the row begins
  int32_t count;  // of its parts
};
struct Deal {
  int32_t whole;  // not 0: nothing is to be gained, every block takes whole rows in turn
  int32_t first, last;
  int32_t begin, end;
  PartsOfRow of[2];  // the row that is continued here, and the one that is continued elsewhere
  uint32_t warp_cost[kThreads / 32];
  uint32_t warp_most[kThreads / 32];
};

// Every thread arrives for itself, but where a warp hands over keys: lane 0 wrote what other threads read, the rest is
// for the tensor cores. One lane's arrival for a warp that has met would do, too, and cost as much, but tools that look
// for races do not follow that.
struct Barriers {
  uint64_t keys_full[kStages][kParts];  // producers -> scores; one arrival a warp
  uint64_t keys_empty[kStages][4];      // values -> producers, 128 dims each, of one warpgroup
  uint64_t p_full[kStages];             // scores -> values
  uint64_t stats_full;                  // scores -> values: what a row ends with, and the next one's tiles
  uint64_t stats_empty;                 // values -> scores
  // Of a row that the blocks of a cluster share, from all of them, by bytes, which one arrival announces:
  uint64_t places_full;  // where each takes the others' units
  uint64_t sums_full;    // maxima and sums
  uint64_t units_full;   // units that this block merges
};
constexpr int kBarriers = sizeof(Barriers) / sizeof(uint64_t);

struct Shared {
  alignas(1024) uint8_t q[kQueryBlocks * kBlockBytes];
  alignas(1024) uint8_t keys[kStages][kTileBytes];  // at the end of a shared row units of O
  alignas(1024) uint8_t p[kStages][kBlockBytes];
  alignas(16) uint8_t raw[kProducerWarps][2][kPlaceBytes];  // at the end of a shared row its MergeStats
  alignas(16) float rotation[2][format::kRopeDim];          // cos, sin of a row's position; by the row's parity
  alignas(16) ComingRow coming[2];                          // by the row's parity
  int32_t tiles[2];                                         // of a row, likewise
  Row rows[kRows];  // by the row's number; written by the scores role, a row ahead
  int32_t slots[kProducerWarps][kLists][kBatches * 8];
  uint32_t tiles_asked[kProducerWarps][kLists];  // see Producer
  uint32_t opened[kProducerWarps][2];  // the tile that begins with a unit, by the unit's parity: source, valid keys
  alignas(16) Walk walks[kProducerWarps][2];
  Request requests[kProducerWarps][32];
  RequestStep request_steps[kProducerWarps];
  int32_t lengths[kProducerWarps][kLengths][2];
  alignas(8) uint8_t valid[kStages][kTileKeys / 8];  // bit k % 8 of byte k / 8
  float alpha[kStages][kTileHeads];                  // what the accumulators of a head are multiplied by before a tile
  uint32_t unit_places[plan::kMostClusterBlocks];    // of a shared row: where each block of the cluster takes units
  float row_max[kTileHeads];                         // of a row in parts
  float row_sum[kTileHeads];
  float factor[kTileHeads];    // from accumulators to output; negative: zeros, whatever the accumulators are
  float sink[2 * kTileHeads];  // of all heads
  int32_t outside;             // of a row in parts: its position is no row of the table
  int32_t last_part;           // and this block's part is the last to come
  Deal deal;
  alignas(8) Barriers barriers;
};
static_assert(sizeof(Shared) <= 232448);
constexpr int kSharedBytes = sizeof(Shared);

// The end of a row that the blocks of a cluster share. 32 dims of 16 heads of each block's partial O, as a warp of the
// values role holds them, are a unit. A unit is merged by one of the blocks: all push theirs to it as soon as they have
// it. What comes takes the place of keys; statistics, and the few units that are more than 64, that of raw records.
struct MergeStats {
  float2 of[plan::kMostClusterBlocks][kTileHeads];  // maximum and sum; then weight
};
constexpr int kUnitsInKeys = 64;
constexpr int most_unit_places() {
  int most = 0;
  for (int n = 2; n <= plan::kMostClusterBlocks; ++n) {
    const int places = (kUnitsInKeys + n - 1) / n * n;
    most = places > most ? places : most;
  }
  return most;
}
constexpr int kMostUnitBytes = 32 * 16 * 4;
static_assert(sizeof(MergeStats) + (most_unit_places() - kUnitsInKeys) * kMostUnitBytes <= sizeof(Shared::raw));
static_assert(kUnitsInKeys * kMostUnitBytes <= sizeof(Shared::keys));
__device__ __forceinline__ MergeStats& merge_stats(Shared& shared) { return reinterpret_cast<MergeStats&>(shared.raw); }
__device__ __forceinline__ bool packs_units(const DecodeParams& p) { return p.output == MEGAMLA_OUTPUT_FP8_PAIR; }

// Each of the 8 warps of the values role has 8 units, if the row has its heads. They are dealt out to the blocks in
// turn.
struct Units {
  int head_blocks;  // of 16 heads
  __device__ __forceinline__ Units(const DecodeParams& p, int first_head)
      : head_blocks((min(p.live_heads - first_head, kTileHeads) + 15) / 16) {}
  __device__ __forceinline__ bool has(int warp) const { return warp % 4 < head_blocks; }
  __device__ __forceinline__ int count() const { return head_blocks * 2 * 8; }
  __device__ __forceinline__ static int first_of(int warp) { return (warp % 4 * 2 + warp / 4) * 8; }
  __device__ __forceinline__ static int warp_of(int unit) { return unit / 16 + unit / 8 % 2 * 4; }
};
// n / p.cluster
__device__ __forceinline__ int in_turns(const DecodeParams& p, int n) {
  return static_cast<int>(static_cast<uint32_t>(n) * p.cluster_inverse >> 16);
}

// A ring of stages as one role walks it: one register.
struct Ring {
  uint32_t tiles = 0;
  __device__ __forceinline__ uint32_t stage() const { return tiles & 1; }
  __device__ __forceinline__ uint32_t parity() const { return tiles >> 1 & 1; }
  __device__ __forceinline__ void advance() { ++tiles; }
};
static_assert(kStages == 2);

__device__ __forceinline__ bool shares_a_row(const DecodeParams& p) {
  return p.cluster > 1 && p.whole_items + ptx::cluster_id() < p.items;
}

// Place of a row's segment. A block continues one row at most, and the rows that it begins come one after the other.
// With fewer than 2 segments - 1 places a block has fewer segments than a row (or whole rows), and they never meet.
__device__ __forceinline__ int segment_place(const DecodeParams& p, int item, int segment) {
  const int block = (item * p.segments + segment) / p.block_segments;
  const bool begun = item * p.segments >= block * p.block_segments;
  return block * p.places + (begun ? p.places - p.segments + segment : segment - 1);
}
// Place of a row's part. Dealt out by keys, a block has at most one part that continues a row, and one that begins a
// row that others continue.
__device__ __forceinline__ int place_of(const DecodeParams& p, const Row& row, int part) {
  if (p.spread == plan::Spread::kKeys) return part == 0 ? row.home * p.places + 1 : (row.home + part) * p.places;
  return segment_place(p, (row.token << p.head_tiles_log) + row.first_head / kTileHeads, part);
}

// The index-th row of this block.
__device__ __forceinline__ Row row_at(const DecodeParams& p, const Shared& shared, int index) {
  Row row{-1, 0, 0, 1, 0, p.tiles, 1, 1, 0, 0, 0, 0};
  uint32_t item;
  int segment = -1;
  if (p.spread == plan::Spread::kSegments) {
    const uint32_t n = blockIdx.x * p.block_segments + index;
    item = n / p.segments;
    if (index >= p.block_segments || item >= p.items) return row;
    segment = static_cast<int>(n - item * p.segments);
    row.part = segment;
    row.parts = p.segments;
    row.home = static_cast<int>(item * p.segments / p.block_segments);
    row.alone = row.home == static_cast<int>((item * p.segments + p.segments - 1) / p.block_segments) ? 1 : 0;
    row.place = segment_place(p, static_cast<int>(item), segment);
  } else if (p.spread == plan::Spread::kKeys && shared.deal.whole == 0) {
    const Deal& deal = shared.deal;
    item = deal.first + index;
    if (static_cast<int>(item) > deal.last) return row;
    const bool continued = index == 0 && deal.begin > 0;
    if (continued) row.begin = deal.begin;
    if (static_cast<int>(item) == deal.last) row.end = deal.end;
    const PartsOfRow& parts = deal.of[continued ? 0 : 1];
    if (continued || (static_cast<int>(item) == deal.last && deal.end < p.tiles)) {
      row.parts = parts.count, row.home = parts.home;
    }
    row.part = static_cast<int>(blockIdx.x) - row.home;
    row.place = static_cast<int>(blockIdx.x) * p.places + (continued ? 0 : 1);
  } else {
    item = blockIdx.x + static_cast<uint32_t>(index) * gridDim.x;
    if (item >= p.whole_items) {
      // Shared rows come last, at most one a cluster.
      const bool first = index == 0 || item - gridDim.x < p.whole_items;
      item = p.whole_items + ptx::cluster_id();
      if (!first || item >= p.items) return row;
      row.ranks = p.cluster;
      row.rank = static_cast<int>(ptx::cluster_rank());
      int segments = p.segments;
      ptx::forget(segments);  // what follows takes no registers between rows
      if (segments > 1) {
        segment = row.rank;
      } else {
        row.begin = row.rank, row.step = row.ranks;
      }
    }
  }
  if (segment >= 0) {
    row.begin = min(segment * p.segment_tiles, p.tiles);
    row.end = min(row.begin + p.segment_tiles, p.tiles);
  }
  row.token = static_cast<int>(item >> p.head_tiles_log);
  row.first_head = static_cast<int>(item & ((1u << p.head_tiles_log) - 1)) * kTileHeads;
  return row;
}

// Tiles of list i that hold keys of a row.
__device__ __forceinline__ int tiles_of(const DecodeParams& p, int i, int length) {
  return (min(max(length, 0), p.keys[i].width) + kTileKeys - 1) / kTileKeys;
}

// How many tiles of the row this block attends.
__device__ __forceinline__ int live_tiles(const DecodeParams& p, const Row& row, const ComingRow& coming) {
  const int window = tiles_of(p, 0, coming.length[0]);
  const int end = p.window_tiles + tiles_of(p, 1, coming.length[1]);
  const auto below = [&](int tile) {
    const int n = min(max(tile, row.begin), row.end) - row.begin;
    return row.step == 1 ? n : (n + row.step - 1) / row.step;
  };
  return below(window) + below(end) - below(p.window_tiles);
}

}  // namespace megamla::cuda
