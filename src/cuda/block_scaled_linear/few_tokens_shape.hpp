// The shape of a block's work in the kernel for few tokens.
#pragma once

#include <algorithm>
#include <cstdint>

namespace megamla::cuda::linear {

constexpr int kFewTokensWarpsLog2 = 3;
constexpr int kFewTokensWarps = 1 << kFewTokensWarpsLog2;
constexpr int kFewTokensThreads = 32 * kFewTokensWarps;
constexpr int kMostFewTokens = 16;
constexpr int kFewTokensPieceColumns = 64;  // of a stage
constexpr int kFewTokensCalledBytes = 256;

// kTiles: of eight rows, a warp. kTokens: 8 or 16. Deep: one block an SM with twice the stages.
template <int kTiles_, int kTokens_, bool kFp8X_, bool kDeep>
struct FewTokensShape {
  static constexpr int kTiles = kTiles_;
  static constexpr int kTokens = kTokens_;
  static constexpr bool kFp8X = kFp8X_;
  static constexpr int kStageGroups = kFewTokensPieceColumns / 32;
  // Rows of a group one after the other; 32 bytes more keep the stores of a row's groups apart.
  static constexpr int kGroupBytes = 8 * kTiles * 32 + 32;
  static constexpr int kStageBytes = kStageGroups * kGroupBytes;
  static constexpr int kStages = (kTiles > 5 ? 2 : kTiles == 5 ? 3 : 4) * (kDeep ? 2 : 1);
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kBlocksPerSm = kDeep ? 1 : 2;
};

// Of a warp: stages, and factors of its rows and groups.
template <class Shape>
constexpr int few_tokens_warp_bytes(int64_t in, int parts_log2) {
  const auto pieces = static_cast<int>(in) / (32 * Shape::kStageGroups);
  return Shape::kRingBytes + ((pieces >> parts_log2) + 1) * Shape::kStageGroups * 8 * Shape::kTiles * 4;
}

// And later sums.
template <class Shape>
int64_t few_tokens_shared_bytes(int64_t in, int row_warps_log2) {
  const int parts_log2 = kFewTokensWarpsLog2 - row_warps_log2;
  const int64_t rows = int64_t{8} * Shape::kTiles << row_warps_log2;
  return std::max<int64_t>(kFewTokensWarps * few_tokens_warp_bytes<Shape>(in, parts_log2),
                           (int64_t{Shape::kTokens} << parts_log2) * (rows + 8) * 4);
}

}  // namespace megamla::cuda::linear
