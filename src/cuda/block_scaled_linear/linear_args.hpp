// What a launch knows of its call.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/few_tokens_shape.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla::cuda::linear {

struct LinearArgs {
  int64_t tokens, groups, in, out;
  uint32_t row_tiles, token_tiles;  // row tiles of all groups; supports() limits their product
  uint32_t group_row_tiles;         // of one
  uint32_t splits;                  // blocks that share a tile's columns: a cluster

  struct FewTokens {     // of the kernel for few tokens
    int columns;         // of a block
    int tiles;           // of eight rows, of a block
    int row_warps_log2;  // warps that take tiles in turn; the others share columns
    int stages;
    FewTokensLayout layout;
  } few;

  const void* x;
  int64_t x_token, x_group;  // strides
  bool x_aligned;            // every unit of x (inputs.cuh) begins at a multiple of 16 bytes
  const void* x_scale;       // I32 words of the output pair, or F8_128x4 bytes
  bool x_scale_packed;       // the former
  int64_t x_scale_token, x_scale_group, x_scale_word;

  const void* weight;
  const uint8_t* weight_scale;
  bool weight_scale_aligned;  // four scales of a row that begin at a multiple of four are one word
  int rows_per_scale_log2;    // 0 or 5

  void* y;
  int64_t y_token, y_group;
  bool y_aligned;  // four values of a row that begin at a multiple of four may be stored at once
  int output;      // megamla_linear_output
  uint8_t* y_scale;
};

// Whether bf16 x and scales can be copied as they are.
constexpr bool only_copies(const LinearArgs& a) {
  return a.x_aligned && (a.weight_scale == nullptr || a.weight_scale_aligned);
}

using Kernel = void (*)(LinearArgs);
constexpr const char* kOp = "block_scaled_linear";

}  // namespace megamla::cuda::linear
