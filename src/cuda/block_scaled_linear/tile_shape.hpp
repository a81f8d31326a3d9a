// The shape of a block's work: tile, stages, shared memory.
#pragma once

#include <cstdint>

namespace megamla::cuda::linear {

// Warp roles: threads 0-255 are two warpgroups that multiply, 256-383 bring weights and x.
constexpr int kMultiplierThreads = 256;
constexpr int kProducerThreads = 128;
constexpr int kThreads = kMultiplierThreads + kProducerThreads;
constexpr int kMultiplierWarps = kMultiplierThreads / 32;

constexpr int kSplitColumns = 128;   // a tile's columns are split at multiples of these
constexpr int kBatchColumns = 32;    // of a scale; multiplied in two steps of 16
constexpr int kSwizzleColumns = 64;  // bf16 values in the 128 bytes that the swizzle turns
constexpr int kMaxSplits = 8;        // blocks of a cluster that any GPU takes

// kTokens: 8, 16, 32, 64 or 128. kRowTiles: times 64 rows, of each of the two warpgroups.
template <int kTokens_, int kRowTiles_, int kWeightBytes_>
struct TileShape {
  static constexpr int kTokens = kTokens_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kWeightBytes = kWeightBytes_;
  static constexpr int kRows = 2 * 64 * kRowTiles;

  // Columns of a stage: 128 bytes of a weight row, or 64 where the tile is so large that stages would be few.
  static constexpr int kColumns = kRowTiles == 1 && kWeightBytes == 1 ? 128 : 64;
  static constexpr int kRowBytes = kColumns * kWeightBytes;
  static constexpr int kSwizzleBlocks = kColumns / kSwizzleColumns;

  static constexpr int kXBytes = kTokens * kColumns * 2;
  static constexpr int kWeightsBytes = kRows * kRowBytes;
  static constexpr int kScalesBytes = kWeightBytes == 1 ? kRows * 4 : 0;
  static constexpr int kStageBytes = kXBytes + kWeightsBytes + (kScalesBytes + 1023) / 1024 * 1024;

  // Few tokens: two blocks an SM, so that one's barriers and epilogue lie under the other's loads.
  static constexpr int kBlocksPerSm = kTokens <= 32 && kRowTiles == 1 ? 2 : 1;
  static constexpr int kMultiplierRegisters = kBlocksPerSm == 2 ? 88 : kRowTiles == 1 ? 168 : 208;
  static constexpr int kProducerRegisters = kBlocksPerSm == 2 ? 64 : kRowTiles == 1 ? 152 : 88;

  // Sums on their way out: [token][row], four floats more a token keep a warp's stores apart.
  static constexpr int kSumPitch = kRows + 4;
  static constexpr int kRoundTokens = kBlocksPerSm == 2 ? (kTokens < 16 ? kTokens : 16) : 32;
  static constexpr int kRoundBytes = kRoundTokens * kSumPitch * 4;

  // 228 KB an SM, of which each block takes 1 KB for itself; 1 KB for the alignment of the stages.
  static constexpr int kBudget = (kBlocksPerSm == 2 ? 113 : 227) * 1024 - 1024;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kFit = (kBudget - kRoundBytes - kBarrierBytes) / kStageBytes;
  static constexpr int kStages = kFit < 6 ? kFit : 6;
  static_assert(kStages >= 3);
  static constexpr int kProducerArrivals = 2;
  // A cluster's sums lie where the stages were.
  static_assert(kTokens * kSumPitch * 4 <= kStages * kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes + kRoundBytes + kBarrierBytes + 1024;
};

}  // namespace megamla::cuda::linear
