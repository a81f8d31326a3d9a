// What the kernel is given: one flat struct, by value.
#pragma once

#include <cstdint>

namespace megamla::cuda {

constexpr int kTileKeys = 64;
constexpr int kTileHeads = 64;
// Keys are widened to K * 2^-60, so that a scale factor that also undoes the bias of the shifted codes stays in bf16's
// range; the softmax scale and the output factor carry the 2^60 back.
constexpr int kKeyShift = 60;
constexpr float kKeyUnshift = 0x1p60F;

// slot / page_size as a multiplication, for 0 <= slot < 2^31: page = slot * multiplier >> shift.
struct PageDivision {
  uint32_t multiplier;
  uint32_t shift;
};

// One list of keys per query row and the paged cache that its slots name.
struct DecodeKeys {
  const uint8_t* cache;
  uint32_t num_slots;  // 0: no such cache
  uint32_t page_size;
  PageDivision division;
  int64_t page_stride;
  int64_t scale_begin;  // within a page
  int32_t data_step;
  int32_t scale_step;
  const int32_t* slots;
  int64_t slots_row_stride;
  int64_t slots_column_stride;
  const int32_t* lens;  // null: width
  int64_t lens_stride;
  int32_t width;
};

struct DecodeParams {
  const uint16_t* q;  // bf16
  int64_t q_token_stride;
  int64_t q_head_stride;   // of 16 dims of a head; in elements, like all strides
  int64_t q_chunk_stride;  // from 16 dims to the next
  int32_t q_chunked;
  int32_t q_norm;
  float q_norm_eps;
  float logit_scale;   // positive, to base-2 units
  int32_t q_negative;  // the softmax scale is
  const void* positions;
  int64_t positions_stride;
  int32_t positions_64;
  const float* cos_sin;  // null: no rotation
  int64_t cos_sin_rows;
  int64_t cos_sin_stride;
  DecodeKeys keys[2];    // window, compressed
  int32_t window_tiles;  // of the window list at its full width
  int32_t tiles;         // of both lists
  const float* sink;     // null: none
  int64_t sink_stride;
  int32_t heads;  // of the buffers
  int32_t live_heads;
  int32_t head_tiles_log;  // a token is 2^head_tiles_log items of 64 heads
  uint32_t items;
  uint32_t whole_items;  // each attended by one block; those after them are shared by the blocks of a cluster
  int32_t cluster;
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
