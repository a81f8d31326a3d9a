// Tile shapes, shared memory, and which rows and key tiles a block works on: read by every role.
#pragma once

#include <cstdint>

#include "cuda/attention/tile.cuh"
#include "cuda/decode_attention/params.hpp"
#include "cuda/ptx/sync.cuh"
#include "plan/decode_split.hpp"

namespace megamla::cuda {

constexpr int kStages = 2;
using Ring = StageRing<kStages>;
// Roles: two warpgroups of values (each owns 256 of the 512 output dims), one of scores, one of producers.
constexpr int kValueThreads = 256;
constexpr int kScoreThreads = 128;
constexpr int kProducerWarps = 4;
constexpr int kBatches = kTileKeys / 8 / kProducerWarps;  // of 8 keys, per warp and tile
constexpr int kThreads = kValueThreads + kScoreThreads + 32 * kProducerWarps;
constexpr int kSlotTiles = 4;  // whose slots a producer warp holds or waits for

// Inside each group of 32 dims, for Q, keys and so for the columns of O: 16-byte chunk i holds the dims
// i, 4 + i, 8 + i, 12 + i, .. 28 + i. Fp4 codes unpack into such pairs (i, 4 + i) without a byte permute, and a thread
// of the values role, which has columns 8 i + 2 c and 8 i + 2 c + 1 of every i, has the 8 consecutive dims from 8 c on.

struct Shared {
  alignas(1024) uint8_t q[kTileBytes];
  alignas(1024) uint8_t keys[kStages][kTileBytes];  // at the end the partial O that a cluster merges
  alignas(1024) uint8_t p[kStages][kBlockBytes];
  alignas(8) uint8_t valid[kStages][kTileKeys / 8];         // bit k % 8 of byte k / 8
  int32_t slots[kProducerWarps][kSlotTiles][kBatches * 8];  // of the coming tiles, for each producer warp
  float alpha[kStages][kTileHeads];  // what the accumulators of a head are multiplied by before a tile
  float q_square[2][kTileHeads];     // sums of q^2, of the two threads that load a head
  float row_max[kTileHeads];
  float row_sum[kTileHeads];
  float merge_weight[plan::kMostClusterBlocks][kTileHeads];
  float merge_factor[kTileHeads];
  // Producers -> scores, values; values -> producers; scores -> values; the same for row_max and row_sum.
  alignas(8) uint64_t slots_full[kProducerWarps][kSlotTiles];
  uint64_t keys_full[kStages];
  uint64_t keys_empty[kStages];
  uint64_t p_full[kStages];
  uint64_t stats_full;
  uint64_t stats_empty;
};
static_assert(sizeof(Shared) <= 232448);
constexpr int kSharedBytes = sizeof(Shared);

// A query row (64 heads of a token) and its key tiles: those of the window list, then those of the compressed list. The
// blocks of a cluster take turns, so that each has its share of either kind of record.
struct Row {
  int token = -1;  // -1: no more rows
  int first_head;
  int rank, ranks;
  int length[2];
  int begin, end;  // this block's tiles: begin, begin + ranks, .. below end
  __device__ __forceinline__ bool any() const { return token >= 0; }
  __device__ __forceinline__ int window_tiles() const { return (length[0] + kTileKeys - 1) / kTileKeys; }
};

// A row whose numbers are still on their way from memory: nothing here has looked at them yet.
struct ComingRow {
  int token;
  int first_head;
  int rank, ranks;
  int length[2];
};

__device__ __forceinline__ int load_length(const DecodeKeys& keys, int token) {
  if (keys.num_slots == 0) return 0;
  if (keys.lens == nullptr) return keys.width;
  return keys.lens[token * keys.lens_stride];
}

// The index-th row of this block.
__device__ __forceinline__ ComingRow load_row(const DecodeParams& p, int index) {
  ComingRow row;
  row.token = -1;
  row.first_head = 0;
  row.rank = 0;
  row.ranks = 1;
  row.length[0] = row.length[1] = 0;
  uint32_t item = blockIdx.x + static_cast<uint32_t>(index) * gridDim.x;
  if (item >= p.whole_items) {
    // Shared rows come last, at most one a cluster.
    const bool first = index == 0 || item - gridDim.x < p.whole_items;
    item = p.whole_items + ptx::cluster_id();
    if (!first || item >= p.items) return row;
    row.ranks = p.cluster;
    row.rank = static_cast<int>(ptx::cluster_rank());
  }
  row.token = static_cast<int>(item >> p.head_tiles_log);
  row.first_head = static_cast<int>(item & ((1u << p.head_tiles_log) - 1)) * kTileHeads;
  row.length[0] = load_length(p.keys[0], row.token);
  row.length[1] = load_length(p.keys[1], row.token);
  return row;
}

__device__ __forceinline__ Row arrived(const DecodeParams& p, const ComingRow& coming) {
  Row row;
  row.token = coming.token;
  row.first_head = coming.first_head;
  row.rank = coming.rank;
  row.ranks = coming.ranks;
  row.length[0] = min(max(coming.length[0], 0), p.keys[0].width);
  row.length[1] = min(max(coming.length[1], 0), p.keys[1].width);
  row.begin = row.rank;
  row.end = row.window_tiles() + (row.length[1] + kTileKeys - 1) / kTileKeys;
  return row;
}

}  // namespace megamla::cuda
