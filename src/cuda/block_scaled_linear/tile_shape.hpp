// The shape of a block's work: tile, stages, shared memory.
#pragma once

#include <cstdint>

namespace megamla::cuda::linear {

// Warp roles: two or four warpgroups multiply, the last one brings weights and x.
constexpr int kProducerThreads = 128;

constexpr int kSplitColumns = 128;   // a tile's columns are split at multiples of these
constexpr int kBatchColumns = 32;    // of a scale; multiplied in two steps of 16
constexpr int kSwizzleColumns = 64;  // bf16 values in the 128 bytes that the swizzle turns
constexpr int kMaxSplits = 8;        // blocks of a cluster that any GPU takes

// kTokens: 8, 16, 32, 64 or 128. kWarpgroups: 2 or 4 that multiply, each of them 64 rows. With four, registers are few:
// such a tile is for bf16 x that can be copied, and for bf16 y.
template <int kTokens_, int kWarpgroups_, int kWeightBytes_>
struct TileShape {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kWeightBytes = kWeightBytes_;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kMultiplierThreads = 128 * kWarpgroups;
  static constexpr int kMultiplierWarps = kMultiplierThreads / 32;
  static constexpr int kThreads = kMultiplierThreads + kProducerThreads;

  // Columns of a stage: 128 bytes of a weight row, or 64 where the tile is so large that stages would be few.
  static constexpr int kColumns = kWarpgroups == 2 && kWeightBytes == 1 ? 128 : 64;
  static constexpr int kRowBytes = kColumns * kWeightBytes;
  static constexpr int kSwizzleBlocks = kColumns / kSwizzleColumns;

  static constexpr int kXBytes = kTokens * kColumns * 2;
  static constexpr int kWeightsBytes = kRows * kRowBytes;
  static constexpr int kScalesBytes = kWeightBytes == 1 ? kRows * 4 : 0;
  static constexpr int kStageBytes = kXBytes + kWeightsBytes + (kScalesBytes + 1023) / 1024 * 1024;

  // Few tokens: two blocks an SM, so that one's barriers and epilogue lie under the other's loads.
  static constexpr int kBlocksPerSm = kTokens <= 32 && kWarpgroups == 2 ? 2 : 1;
  static constexpr int kMultiplierRegisters = kBlocksPerSm == 2 ? 88 : kWarpgroups == 2 ? 168 : 112;
  static constexpr int kProducerRegisters = kBlocksPerSm == 2 ? 64 : kWarpgroups == 2 ? 152 : 32;

  // Sums on their way out: [token][row], four floats more a token keep a warp's stores apart.
  static constexpr int kSumPitch = kRows + 4;
  static constexpr int kRoundTokens = kBlocksPerSm == 2 ? (kTokens < 16 ? kTokens : 16) : 32;
  // The same as bf16, of a warp's own 16 rows; 16 bytes more likewise.
  static constexpr int kWarpPitch = 16 * 2 + 16;
  static constexpr int kWarpBytes = 32 * kWarpPitch;
  static constexpr int kRoundBytes = kWarpgroups == 4 ? kMultiplierWarps * kWarpBytes : kRoundTokens * kSumPitch * 4;

  // 228 KB an SM, of which each block takes 1 KB for itself; 1 KB for the alignment of the stages.
  static constexpr int kBudget = (kBlocksPerSm == 2 ? 113 : 227) * 1024 - 1024;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kFit = (kBudget - kRoundBytes - kBarrierBytes) / kStageBytes;
  static constexpr int kStages = kFit < 6 ? kFit : 6;
  static_assert(kStages >= 3);
  // A cluster's sums lie where the stages were.
  static_assert(kTokens * kSumPitch * 4 <= kStages * kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes + kRoundBytes + kBarrierBytes + 1024;
};

}  // namespace megamla::cuda::linear
