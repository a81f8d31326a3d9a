// What the kernels are given: one flat struct, by value.
#pragma once

#include <cstdint>

#include "cuda/attention/params.hpp"
#include "plan/decode_split.hpp"

namespace megamla::cuda {

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

// Where blocks leave their parts of rows that several of them attend, in the caller's workspace. Nothing there is
// expected to hold anything: a ticket counts only if it carries the launch's number.
struct DecodeParts {
  uint8_t* sums;      // [place] unnormalised O, as the threads of the values role hold it; bf16 for FP8 output, or fp32
  float* stats;       // [place][2][64] largest logit and sum of every head
  uint64_t* tickets;  // [block in which a row begins] launch << 8 | parts that are there; 0 afterwards
  uint64_t launch;
};
constexpr int64_t kPartStats = 2 * kTileHeads;

// q_head_stride is from 16 dims of a head to those of the next head.
struct DecodeParams : AttentionParams {
  int64_t q_chunk_stride;  // from 16 dims to the next
  DecodeKeys keys[2];      // window, compressed
  int32_t cluster;         // blocks that share a row
  // The kernel for many heads.
  uint32_t cluster_inverse;  // ceil(2^16 / cluster)
  int32_t q_negative;        // the softmax scale is; logit_scale is positive
  int32_t window_tiles;      // of the window list at its full width
  int32_t tiles;             // of both lists
  plan::Spread spread;
  uint32_t whole_items;    // kRows: each attended by one block; those after them are shared by the blocks of a cluster
  int32_t segments;        // of a row, where rows are cut alike
  int32_t segment_tiles;   // of a segment
  int32_t block_segments;  // kSegments: of a block
  int32_t places;          // of a block's parts
  DecodeParts parts;       // kKeys, kSegments
  // few_heads/
  uint32_t items_at_once;  // where a block attends a whole item
  int32_t calls_ahead;     // whether a block calls what it begins with while the kernel before may still run
  int32_t crew_cost;       // of a crew's steps of a row at its full width; of the first dearer_crews crews one more
  int32_t dearer_crews;
};

}  // namespace megamla::cuda
