// What the kernel is given: one flat struct, by value.
#pragma once

#include <cstdint>

#include "cuda/attention/params.hpp"

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

struct DecodeParams : AttentionParams {
  DecodeKeys keys[2];    // window, compressed
  uint32_t whole_items;  // each attended by one block; those after them are shared by the blocks of a cluster
  int32_t cluster;
  // few_heads/: 2^32 / cluster, rounded up; stages of the ring of tiles
  uint32_t cluster_reciprocal;
  int32_t stages;
};

}  // namespace megamla::cuda
