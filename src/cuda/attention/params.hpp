// What the attention kernels have in common of what they are given: queries, rotation, sinks, outputs. A flat struct,
// by value.
#pragma once

#include <cstdint>

namespace megamla::cuda {

constexpr int kTileKeys = 64;
constexpr int kTileHeads = 64;

struct AttentionParams {
  const uint16_t* q;  // bf16
  int64_t q_token_stride;
  int64_t q_head_stride;
  int32_t q_chunked;
  int32_t q_norm;
  float q_norm_eps;
  float logit_scale;  // to base-2 units
  const void* positions;
  int64_t positions_stride;
  int32_t positions_64;
  const float* cos_sin;  // null: no rotation
  int64_t cos_sin_rows;
  int64_t cos_sin_stride;
  const float* sink;  // null: none
  int64_t sink_stride;
  int32_t heads;  // of the buffers
  int32_t live_heads;
  int32_t head_tiles_log;  // a token is 2^head_tiles_log items of up to 64 heads
  uint32_t items;
  int32_t output;  // megamla_attention_output
  void* out;
  int64_t out_token_stride;
  int64_t out_head_stride;  // of a group for the pair
  int32_t* out_scale;
  int64_t scale_word_stride;
  int64_t scale_group_stride;
  float* lse;  // null: not wanted
  int64_t lse_token_stride;
  int64_t lse_head_stride;
};

}  // namespace megamla::cuda
