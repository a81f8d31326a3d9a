// The compressor's state ring, ratio 2: contract section 10. Rows are numbered block * capacity + row over the pool.
#pragma once

#include "core/tensor.hpp"
#include "format/host_device.hpp"
#include "megamla/kv_compress.h"

namespace megamla::plan {

constexpr int64_t kPooledWidth = 512;              // kv; the score lies behind it
constexpr int64_t kStateWidth = 2 * kPooledWidth;  // fp32 per token

struct StateRows {
  int64_t own;      // row that the token is stored in; -1: the token is skipped (padding, no request, null block)
  int64_t partner;  // row of the token before it, with which it closes a group; -1: it leaves the group open
};

// `block`: of the token's request; 0 for a token without one.
MEGAMLA_HD constexpr StateRows state_rows_of(int64_t block, int64_t position, int64_t blocks, int64_t capacity) {
  if (block <= 0 || block >= blocks || position < 0) return {-1, -1};
  const int64_t begin = block * capacity;
  return {begin + position % capacity, position % 2 == 1 ? begin + (position - 1) % capacity : -1};
}
inline StateRows state_rows(const megamla_kv_compress_params& p, int64_t token) {
  const int64_t request = at<const int32_t>(p.token_to_req, token);
  const bool known = request >= 0 && request < p.state_block.shape[0];
  return state_rows_of(known ? at<const int32_t>(p.state_block, request) : 0, index_at(p.positions, token),
                       p.state.shape[0], p.state.shape[1]);
}

// Row `row` of the state pool, which is contiguous.
inline float* state_row(const megamla_kv_compress_params& p, int64_t row) {
  return data<float>(p.state) + row * kStateWidth;
}

}  // namespace megamla::plan
