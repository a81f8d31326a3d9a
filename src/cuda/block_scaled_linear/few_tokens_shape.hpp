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

  // Rows that one copy brings, a power of two, and from one such to the next: 32 bytes more keep the words of four
  // copies apart that a warp loads at once.
  int copy_rows_log2, copy_pitch;
  // Rows g and g + 8 of a product, g = 0 .. 7, are rows row(g) and row(g) + second_row of the tile, `second` bytes on.
  // Four neighbours lie in four copies: first_copies is 3 in binary, or 7.
  uint32_t first_copies, second_row, second;
  int scales;       // in a stage, behind the weights
  int stage;        // bytes of one
  int factors;      // of a warp: [group][row]
  int sums_pitch;   // floats of a token
  int sums;         // bytes of all parts, [part][token][row]
  int first_stage;  // after barriers, factors, sums

  // `whole_rows`: they lie side by side in memory.
  static constexpr FewTokensLayout of(int columns, bool whole_rows, int tokens, int groups, int parts, int tiles) {
    FewTokensLayout l{};
    l.copy_rows_log2 = whole_rows ? 2 : 0;
    l.copy_pitch = (columns << l.copy_rows_log2) + 32;
    l.first_copies = whole_rows ? 3 : 7;
    l.second_row = whole_rows ? 2 : 8;
    l.second = static_cast<uint32_t>(whole_rows ? 2 * columns : 8 * l.copy_pitch);
    l.scales = (kTileRows >> l.copy_rows_log2) * l.copy_pitch;
    l.stage = (l.scales + kTileRows * columns / 32 + 127) / 128 * 128;
    l.factors = groups * kTileRows * 4;
    l.sums_pitch = kTileRows * tiles + 4;
    l.sums = parts * tokens * l.sums_pitch * 4;
    l.first_stage = (kBarriers + kFewTokensWarps * l.factors + l.sums + 127) / 128 * 128;
    return l;
  }

  constexpr uint32_t row(uint32_t g) const { return ((g & first_copies) << copy_rows_log2) + (g & ~first_copies) / 4; }
  constexpr uint32_t row_at(uint32_t g, uint32_t columns) const {  // bytes
    return (g & first_copies) * copy_pitch + (g & ~first_copies) / 4 * columns;
  }
  constexpr int most_stages() const {
    const int fit = (kMost - first_stage) / stage;
    return fit < kMostStages ? fit : kMostStages;
  }
};

}  // namespace megamla::cuda::linear
