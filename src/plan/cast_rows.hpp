// Rows of the two FP8 casts on host memory: contract sections 7 and 11. Bytes are shared with other software, so every
// implementation takes them from here.
#pragma once

#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "plan/packed_scales.hpp"

namespace megamla::plan {

// One token's group of an output pair: o[8][512] (standard order, contiguous) -> data[4096] chunked, and 32 words,
// word_stride elements apart.
inline void cast_output_heads(const float* o, uint8_t* data, int32_t* words, int64_t word_stride) {
  uint8_t scales[format::kGroupChunks];
  for (int64_t h = 0; h < format::kGroupHeads; ++h) {
    for (int64_t d = 0; d < format::kHeadDim; d += format::kOChunkDims) {
      scales[format::o_chunk(h, d)] =
          format::cast_output_group(o + h * format::kHeadDim + d, data + format::o_chunked_index(h, d));
    }
  }
  for (int64_t w = 0; w < format::kGroupScaleWords; ++w) {
    words[w * word_stride] = packed_word(scales, format::kGroupChunks, w);
  }
}

// Row `row` of [rows, columns] values: x[columns], rounded to bf16 first -> data[columns] and the row's bytes of the
// F8_128x4 scales, whose padding is left alone.
template <class LoadValue>
void cast_mxfp8_row(LoadValue&& value, int64_t row, int64_t columns, uint8_t* data, uint8_t* scales) {
  const int64_t groups = columns / format::kCastGroup;
  for (int64_t k = 0; k < groups; ++k) {
    float x[format::kCastGroup];
    for (int64_t i = 0; i < format::kCastGroup; ++i) x[i] = format::round_to_bf16(value(k * format::kCastGroup + i));
    scales[format::f8_128x4_index(groups, row, k)] = format::cast_mxfp8_group(x, data + k * format::kCastGroup);
  }
}

}  // namespace megamla::plan
