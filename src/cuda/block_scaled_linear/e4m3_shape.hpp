// The shape of a block's work in the kernel that multiplies codes.
#pragma once

#include "cuda/block_scaled_linear/tile_shape.hpp"

namespace megamla::cuda::linear {

// kTokenTiles: of 64 tokens, of each of the two warpgroups. 1: blocks share a tile's columns in clusters.
template <int kTokenTiles_>
struct E4m3Shape {
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kTokens = 2 * 64 * kTokenTiles;
  static constexpr int kMultiplierThreads = 256;
  static constexpr int kMultiplierWarps = kMultiplierThreads / 32;
  static constexpr int kThreads = kMultiplierThreads + kProducerThreads;
  static constexpr int kRows = 128;
  static constexpr int kColumns = 128;
  static constexpr int kWeightBytes = 1;
  static constexpr int kScaleGroups = kColumns / 32;  // of a stage
  static constexpr int kRowBlocks = kRows / 32;       // rows that share scales, as a rule
  static constexpr int kFactorBytes = kScaleGroups * kTokens * kRowBlocks * 4;

  static constexpr int kXBytes = kTokens * kColumns;
  static constexpr int kWeightsBytes = kRows * kColumns;
  // Factors [group][token][row block], scale words of tokens, of rows, and whether row blocks share scales.
  static constexpr int kTokenWords = kFactorBytes;
  static constexpr int kRowWords = kTokenWords + kTokens * 4;
  static constexpr int kShared = kRowWords + kRows * 4;
  static constexpr int kScalesBytes = kShared + kRowBlocks * 4;
  static constexpr int kStageBytes = kXBytes + kWeightsBytes + (kScalesBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = kTokenTiles == 1 ? 4 : 3;
  static constexpr int kLag = kStages - 2;  // stages on their way before the producers wait for the first of them

  static constexpr int kBlocksPerSm = 1;
  static constexpr int kMultiplierRegisters = 232;
  static constexpr int kProducerRegisters = 40;

  // A warp turns 8 tokens by 64 rows at a time; eight floats more a token keep its stores apart.
  static constexpr int kTurnRows = 64;
  static constexpr int kTurnPitch = kTurnRows + 8;
  static constexpr int kTurnBytes = 8 * kTurnPitch * 4;
  static constexpr int kRoundBytes = kMultiplierWarps * kTurnBytes;
  static constexpr int kSumPitch = kRows + 8;  // of a cluster's sums, which lie where the stages were
  static_assert(kTokens * kSumPitch * 4 <= kStages * kStageBytes);
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes = kStages * kStageBytes + kRoundBytes + kBarrierBytes + 1024;
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace megamla::cuda::linear
