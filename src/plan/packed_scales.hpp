// Scale bytes packed into int32 words, as weights and activations carry them into a GEMM.
#pragma once

#include "format/chunked.hpp"

namespace megamla::plan {

// Word `word` of a row of `columns` scale bytes; columns past the last are 0.
MEGAMLA_HD constexpr int32_t packed_word(const uint8_t* scales, int64_t columns, int64_t word) {
  uint32_t bits = 0;
  for (int64_t column = 4 * word; column < 4 * word + 4 && column < columns; ++column) {
    bits |= static_cast<uint32_t>(scales[column]) << format::packed_scale(column).shift;
  }
  return static_cast<int32_t>(bits);
}

}  // namespace megamla::plan
