// What the kernel is given: one flat struct, by value.
#pragma once

#include <cstdint>

#include "cuda/attention/params.hpp"

namespace megamla::cuda {

struct PrefillParams : AttentionParams {
  const uint16_t* kv;  // bf16 [rows, 512]
  int64_t kv_row_bytes;
  uint32_t kv_rows;
  const int32_t* indices;
  int64_t indices_row_stride;
  int64_t indices_column_stride;
  const int32_t* lengths;  // null: width
  int64_t lengths_stride;
  int32_t width;
  float* max_logits;  // null: not wanted
  int64_t max_token_stride;
  int64_t max_head_stride;
};

}  // namespace megamla::cuda
