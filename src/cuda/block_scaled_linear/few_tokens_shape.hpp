// The shape of a block's work in the kernel for few tokens.
#pragma once

#include <cstdint>

namespace megamla::cuda::linear {

constexpr int kMostFewTokens = 16;
constexpr int kTileRows = 16;  // of a stage: the M of a warp's matrix multiply

constexpr int kFewTokensWarpsLog2 = 4;
constexpr int kFewTokensWarps = 1 << kFewTokensWarpsLog2;
constexpr int kFewTokensThreads = 32 * kFewTokensWarps;

// kTokens: 8 or 16. kGroups: of 32 columns, a warp, whose x it keeps in registers.
template <int kTokens_, int kGroups_, bool kFp8X_>
struct FewTokensShape {
  static constexpr int kTokens = kTokens_;
  static constexpr int kGroups = kGroups_;
  static constexpr bool kFp8X = kFp8X_;
};

// Where things lie in a block's shared memory, in bytes. Columns: of this block.
struct FewTokensLayout {
  static constexpr int kMost = 227 * 1024;
  static constexpr int kBarriers = 256;
  static constexpr int kMostStages = kBarriers / 16;

  int row_pitch;    // of weights: 32 bytes more than columns keep eight rows' words apart
  int scales;       // in a stage, behind the weights
  int stage;        // bytes of one
  int factors;      // of a warp: [group][row]
  int sums_pitch;   // floats of a token
  int sums;         // bytes of all parts, [part][token][row]
  int first_stage;  // after barriers, factors, sums

  static constexpr FewTokensLayout of(int columns, int tokens, int groups, int parts, int tiles) {
    FewTokensLayout l{};
    l.row_pitch = columns + 32;
    l.scales = kTileRows * l.row_pitch;
    l.stage = (l.scales + kTileRows * columns / 32 + 127) / 128 * 128;
    l.factors = groups * kTileRows * 4;
    l.sums_pitch = kTileRows * tiles + 4;
    l.sums = parts * tokens * l.sums_pitch * 4;
    l.first_stage = (kBarriers + kFewTokensWarps * l.factors + l.sums + 127) / 128 * 128;
    return l;
  }

  constexpr int most_stages() const {
    const int fit = (kMost - first_stage) / stage;
    return fit < kMostStages ? fit : kMostStages;
  }
};

}  // namespace megamla::cuda::linear
