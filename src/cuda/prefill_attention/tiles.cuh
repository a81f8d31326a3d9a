// Shared memory, and which rows a block works on: read by every role.
#pragma once

#include <cstdint>

#include "cuda/attention/tile.cuh"
#include "cuda/prefill_attention/params.hpp"
#include "cuda/ptx/sync.cuh"
#include "format/chunked.hpp"

namespace megamla::cuda::prefill {

// Roles: two warpgroups of values (each owns 256 of the 512 output dims), one of scores, one of producers.
constexpr int kValueThreads = 256;
constexpr int kScoreThreads = 128;
constexpr int kProducerThreads = 128;
constexpr int kThreads = kValueThreads + kScoreThreads + kProducerThreads;
// A key tile is fetched, multiplied and released in two halves of its dims: of 256 dims, blocks 0, 1, 4, 5 are the
// first half, so that each values warpgroup has two blocks of either.
constexpr int kHalves = 2;
constexpr int kHalfBlocks = kBlocks / kHalves / 2;
constexpr uint32_t kHalfBytes = kHalfBlocks * kBlockBytes;  // from a block to that of the other half
// Steps of 16 keys: of the product P V, and the keys of a tile that a producer warp fetches.
constexpr int kSteps = 4;
constexpr int kStepKeys = kTileKeys / kSteps;
static_assert(kSteps == kProducerThreads / 32);

// What wgmma reads: `kHeads` heads of Q, `kStages` key tiles and their P, swizzled in units of 1 KB; and where the
// roles meet. One struct: nvcc tests a reference for null wherever it is converted to a base that is not the first.
template <int kHeadsOfQ, int kStagesOfKeys>
struct SharedTiles {
  static constexpr int kHeads = kHeadsOfQ;
  static constexpr int kStages = kStagesOfKeys;
  static constexpr int kTables = 3;
  static constexpr int kQueryBlockBytes = kHeads * kRowBytes;
  using Ring = StageRing<kStages>;

  alignas(1024) uint8_t q[kBlocks * kQueryBlockBytes];
  alignas(1024) uint8_t keys[kStages][kTileBytes];
  alignas(1024) uint8_t p[kStages][kHeads * kRowBytes];  // 64 keys a head

  // Producers -> scores; scores -> producers.
  alignas(8) uint64_t q_full[kHalves];
  uint64_t q_empty;
  // Producers -> scores, and on to values by way of p_full; values -> producers.
  uint64_t keys_full[kStages][kHalves];
  uint64_t keys_empty[kStages][kHalves];
  uint64_t p_full[kStages];                    // scores -> values
  uint64_t row_full;                           // scores -> values: what the output of a row needs
  uint64_t row_empty;                          // values -> scores
  alignas(8) uint16_t valid[kStages][kSteps];  // of producers: a bit a key, there with the first half

  alignas(16) float cos_sin[kTables][format::kRopeDim];  // of one row after another
  int rotated[kTables];
  int outside[kTables];  // the row's position is no row of the table

  __device__ __forceinline__ void init_barriers() {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int half = 0; half < kHalves; ++half) {
        ptx::mbarrier_init(&keys_full[stage][half], kProducerThreads + (half == 0 ? kProducerThreads / 32 : 0));
        ptx::mbarrier_init(&keys_empty[stage][half], kValueThreads / 32);
      }
      ptx::mbarrier_init(&p_full[stage], kScoreThreads);
    }
    ptx::mbarrier_init(&q_full[0], kProducerThreads);
    ptx::mbarrier_init(&q_full[1], kProducerThreads + 1);
    ptx::mbarrier_init(&q_empty, kScoreThreads);
    ptx::mbarrier_init(&row_full, kScoreThreads);
    ptx::mbarrier_init(&row_empty, kValueThreads);
  }
};
constexpr int kMostSharedBytes = 232448;

// A query row: 64 heads of a token.
struct Row {
  int token;  // -1: no more rows
  int first_head;
  __device__ __forceinline__ bool any() const { return token >= 0; }
};

// The index-th row of this block.
__device__ __forceinline__ Row row_at(const PrefillParams& p, int index) {
  const uint32_t item = blockIdx.x + static_cast<uint32_t>(index) * gridDim.x;
  if (item >= p.items) return {-1, 0};
  return {static_cast<int>(item >> p.head_tiles_log),
          static_cast<int>(item & ((1u << p.head_tiles_log) - 1)) * kTileHeads};
}

// In elements: between heads, and between the 16-dim chunks of a head.
struct QueryStrides {
  int64_t head;
  int64_t chunk;
  __device__ __forceinline__ explicit QueryStrides(const PrefillParams& p)
      : head(p.q_chunked != 0 ? format::kQChunkDims : p.q_head_stride),
        chunk(p.q_chunked != 0 ? p.heads * format::kQChunkDims : format::kQChunkDims) {}
};

// Entries of a row's list, as they come from memory: not to be looked at before they are needed.
__device__ __forceinline__ int load_length(const PrefillParams& p, const Row& row) {
  return p.lengths == nullptr || !row.any() ? p.width : p.lengths[row.token * p.lengths_stride];
}
__device__ __forceinline__ int clamped(const PrefillParams& p, int length) { return min(max(length, 0), p.width); }

// Of the 16 heads of a warp none is wanted.
__device__ __forceinline__ bool idle(const PrefillParams& p, const Row& row, int warp) {
  return row.first_head + warp * 16 >= p.live_heads;
}

}  // namespace megamla::cuda::prefill
