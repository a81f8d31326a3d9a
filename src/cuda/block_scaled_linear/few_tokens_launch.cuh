// Which variant of the kernel for few tokens a call takes, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/block_scaled_linear/few_tokens_kernel.cuh"
#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/tile_plan.hpp"
#include "cuda/block_scaled_linear/tuning.hpp"
#include "cuda/launch.hpp"

namespace megamla::cuda::linear {

struct FewTokensVariant {
  Kernel kernel = nullptr;
  int tokens = 0;
  int groups = 0;  // of 32 columns, a warp
};

// 16 tokens of ten groups would be more than there are registers.
template <int kTokens, int kGroups, bool kFp8X>
constexpr FewTokensVariant few_tokens_variant() {
  if constexpr (kTokens * kGroups > 128) {
    return {};
  } else {
    return {few_tokens_kernel<FewTokensShape<kTokens, kGroups, kFp8X>>, kTokens, kGroups};
  }
}

using FewTokensVariants = std::array<FewTokensVariant, 3>;
template <int kTokens, bool kFp8X>
constexpr FewTokensVariants kFewTokensVariants = {few_tokens_variant<kTokens, 10, kFp8X>(),
                                                  few_tokens_variant<kTokens, 8, kFp8X>(),
                                                  few_tokens_variant<kTokens, 5, kFp8X>()};

inline const FewTokensVariants& few_tokens_variants(int64_t tokens, bool fp8_x) {
  if (tokens <= 8) return fp8_x ? kFewTokensVariants<8, true> : kFewTokensVariants<8, false>;
  return fp8_x ? kFewTokensVariants<16, true> : kFewTokensVariants<16, false>;
}

struct FewTokensChoice {
  const FewTokensVariant* variant = nullptr;
  int splits = 1, row_warps_log2 = 0, tiles = 0;
  int64_t clocks = 0;
};

// What copies of 16 bytes ask of scales and their rows.
inline bool few_tokens_scales_fit(const LinearArgs& a, int splits) {
  const int64_t groups = a.in / 32;
  if (reinterpret_cast<uintptr_t>(a.weight_scale) % 16 != 0) return false;
  if (splits > 1 || a.rows_per_scale_log2 != 0) return groups % 16 == 0 && groups / splits % 16 == 0;
  return groups * kTileRows % 16 == 0;
}

// Estimated clocks of the busiest multiprocessor: bytes of its tiles, and what a block costs by itself. At least two
// stages in shared memory.
inline void try_few_tokens(const LinearArgs& a, FewTokensChoice c, int multiprocessors, FewTokensChoice& best) {
  constexpr int64_t kMemory = 18;  // bytes per clock
  constexpr int64_t kBlock = 4000;
  constexpr int64_t kMeet = 1500;
  const auto columns = static_cast<int>(a.in) / c.splits;
  for (c.tiles = 1; c.tiles <= 64; ++c.tiles) {
    const int64_t rows = kTileRows * c.tiles;
    if (a.out % rows != 0 || (a.output == MEGAMLA_LINEAR_OUT_MXFP8 && rows % 32 != 0)) continue;
    const FewTokensLayout layout = FewTokensLayout::of(columns, c.splits == 1, c.variant->tokens, c.variant->groups,
                                                       kFewTokensWarps >> c.row_warps_log2, c.tiles);
    if (std::min(layout.most_stages(), c.tiles) < std::max(2, 1 << c.row_warps_log2)) continue;
    const int64_t waves = ceil_div(a.groups * (a.out / rows) * c.splits, multiprocessors);
    c.clocks = waves * (rows * columns / kMemory + kBlock + (c.splits > 1 ? kMeet : 0));
    if (best.variant == nullptr || c.clocks < best.clocks) best = c;
  }
}

// What that kernel asks for: rows and columns that warps and tiles divide, loads and copies of 16 bytes. Its split of
// the columns depends on the number of tokens.
inline FewTokensChoice choose_few_tokens(const megamla_block_scaled_linear_params& p, const LinearArgs& a,
                                         int multiprocessors) {
  FewTokensChoice best{};
  if (a.tokens > kMostFewTokens || p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16 || p.batch_invariant != 0 ||
      !a.x_aligned || a.in % 128 != 0) {
    return best;
  }
  constexpr int64_t kLeastColumns = 2048;  // of a part of a row: shorter copies cost more than they bring
  FewTokensChoice c{};
  for (const FewTokensVariant& v : few_tokens_variants(a.tokens, p.input != MEGAMLA_LINEAR_IN_BF16)) {
    c.variant = &v;
    if (v.kernel == nullptr) continue;
    for (c.splits = 1; c.splits <= kMaxSplits; c.splits *= 2) {
      if (c.splits > 1 && a.in / c.splits < kLeastColumns) break;
      if (const int splits = tuned("LIN_FEW_SPLITS", 0); splits != 0 && splits != c.splits) continue;
      for (c.row_warps_log2 = 0; c.row_warps_log2 <= kFewTokensWarpsLog2; ++c.row_warps_log2) {
        const int64_t groups = int64_t{v.groups} * c.splits * (kFewTokensWarps >> c.row_warps_log2);
        if (groups * 32 == a.in && few_tokens_scales_fit(a, c.splits)) try_few_tokens(a, c, multiprocessors, best);
      }
    }
  }
  return best;
}

inline Status launch_few_tokens(LinearArgs a, const FewTokensChoice& c, cudaStream_t stream) {
  set_tiles(a, kTileRows * c.tiles, kMostFewTokens);
  a.splits = static_cast<uint32_t>(c.splits);
  a.few.columns = static_cast<int>(a.in) / c.splits;
  a.few.tiles = c.tiles;
  a.few.row_warps_log2 = c.row_warps_log2;
  const FewTokensLayout layout = FewTokensLayout::of(a.few.columns, c.splits == 1, c.variant->tokens, c.variant->groups,
                                                     kFewTokensWarps >> c.row_warps_log2, c.tiles);
  a.few.layout = layout;
  a.few.stages = std::min({layout.most_stages(), c.tiles, tuned("LIN_FEW_STAGES", 16)});
  const int shared = layout.first_stage + a.few.stages * layout.stage;
  MEGAMLA_CUDA_CALL(kOp, cudaFuncSetAttribute(c.variant->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  LaunchShape shape = overlapping({int64_t{a.row_tiles} * c.splits, kFewTokensThreads, static_cast<size_t>(shared)});
  shape.cluster = c.splits;
  return launch(kOp, shape, stream, c.variant->kernel, a);
}

}  // namespace megamla::cuda::linear
