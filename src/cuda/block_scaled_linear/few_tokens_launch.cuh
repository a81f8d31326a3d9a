// Which variant of the kernel for few tokens a call takes, and its launch.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/block_scaled_linear/few_tokens_kernel.cuh"
#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/tile_plan.hpp"
#include "cuda/block_scaled_linear/tuning.hpp"
#include "cuda/launch.hpp"

namespace megamla::cuda::linear {

// A kernel for few tokens, and its tile.
struct FewTokensVariant {
  Kernel kernel = nullptr;
  int tiles = 0;
  int64_t (*shared_bytes)(int64_t in, int row_warps_log2) = nullptr;
};

template <int kTiles, int kTokens, bool kFp8X, bool kDeep>
constexpr FewTokensVariant few_tokens_variant() {
  using Shape = FewTokensShape<kTiles, kTokens, kFp8X, kDeep>;
  return {few_tokens_kernel<Shape>, kTiles, few_tokens_shared_bytes<Shape>};
}

using FewTokensVariants = std::array<FewTokensVariant, 4>;
template <int kTokens, bool kFp8X>
constexpr FewTokensVariants kFewTokensVariants = {
    few_tokens_variant<8, kTokens, kFp8X, kTokens == 16>(), few_tokens_variant<5, kTokens, kFp8X, false>(),
    few_tokens_variant<4, kTokens, kFp8X, false>(), few_tokens_variant<2, kTokens, kFp8X, false>()};
#ifdef MEGAMLA_TUNE
template <int kTokens, bool kFp8X>
constexpr FewTokensVariants kDeepVariants = {
    few_tokens_variant<8, kTokens, kFp8X, true>(), few_tokens_variant<5, kTokens, kFp8X, true>(),
    few_tokens_variant<4, kTokens, kFp8X, true>(), few_tokens_variant<2, kTokens, kFp8X, true>()};
#endif

inline const FewTokensVariants& few_tokens_variants(int64_t tokens, bool fp8_x) {
#ifdef MEGAMLA_TUNE
  if (tuned("LIN_DEEP", 0) != 0) {
    if (tokens <= 8) return fp8_x ? kDeepVariants<8, true> : kDeepVariants<8, false>;
    return fp8_x ? kDeepVariants<16, true> : kDeepVariants<16, false>;
  }
#endif
  if (tokens <= 8) return fp8_x ? kFewTokensVariants<8, true> : kFewTokensVariants<8, false>;
  return fp8_x ? kFewTokensVariants<16, true> : kFewTokensVariants<16, false>;
}

// What that kernel asks for: scales of two groups of columns at once, loads of 16 bytes. Its split of the columns
// depends on the weights alone, but other tokens' calls take other kernels.
inline bool takes_few_tokens(const megamla_block_scaled_linear_params& p, const LinearArgs& a) {
  return a.tokens <= kMostFewTokens && p.weight_kind != MEGAMLA_LINEAR_WEIGHT_BF16 && p.batch_invariant == 0 &&
         a.x_aligned && a.weight_scale_aligned && reinterpret_cast<uintptr_t>(a.x_scale) % 2 == 0;
}

struct FewTokensChoice {
  const FewTokensVariant* variant = nullptr;
  int row_warps_log2 = 0;
};

// The tile that leaves the busiest warp the least: rows times pieces of columns, and what a block costs by itself.
inline FewTokensChoice choose_few_tokens(const LinearArgs& a, const FewTokensVariants& list, int multiprocessors) {
  constexpr int64_t kMostShared = 227 * 1024;
  constexpr int64_t kBlock = 128;
  const int64_t pieces = a.in / kFewTokensPieceColumns;
  FewTokensChoice best{};
  int64_t least = 0;
  for (const FewTokensVariant& v : list) {
    if (const int tiles = tuned("LIN_TILES", 0); tiles != 0 && tiles != v.tiles) continue;
    for (int log2 = 0; log2 <= kFewTokensWarpsLog2; ++log2) {
      const int64_t rows = int64_t{8} * v.tiles << log2;
      if (a.out % rows != 0 || (a.output == MEGAMLA_LINEAR_OUT_MXFP8 && rows % 32 != 0)) continue;
      if (v.shared_bytes(a.in, log2) > kMostShared) continue;
      const int64_t of_block = 8 * v.tiles * ceil_div(pieces, kFewTokensWarps >> log2) + kBlock;
      const int64_t busiest = ceil_div(a.groups * (a.out / rows), multiprocessors) * of_block;
      if (best.variant == nullptr || busiest < least) {
        best = {&v, log2};
        least = busiest;
      }
    }
  }
  return best;
}

inline Status launch_few_tokens(LinearArgs a, const FewTokensChoice& choice, cudaStream_t stream) {
  const FewTokensVariant& v = *choice.variant;
  set_tiles(a, 8 * v.tiles << choice.row_warps_log2, 1);
  a.row_warps_log2 = choice.row_warps_log2;
  a.called_bytes = tuned("LIN_CALLED", kFewTokensCalledBytes);
  const int64_t shared = v.shared_bytes(a.in, choice.row_warps_log2);
  MEGAMLA_CUDA_CALL(
      kOp, cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  return launch(kOp, overlapping({a.row_tiles, kFewTokensThreads, static_cast<size_t>(shared)}), stream, v.kernel, a);
}

}  // namespace megamla::cuda::linear
