// Which cache rows kv_gather copies for a request: contract sections 9 and 14.
#pragma once

#include <cstdint>

#include "format/host_device.hpp"

namespace megamla::plan {

struct GatherRange {
  int64_t first;  // cache row of the request that goes to row `offset` of its workspace
  int64_t rows;
};

// The last gather_len rows of the sequence (all: gather_len = seq_len), as far as the workspace of m rows has room for
// them behind `offset`.
MEGAMLA_HD constexpr GatherRange gather_range(int64_t seq_len, int64_t gather_len, int64_t m, int64_t offset) {
  if (seq_len < 0) seq_len = 0;
  if (gather_len < 0) gather_len = 0;
  if (gather_len > seq_len) gather_len = seq_len;
  const int64_t room = m > offset ? m - offset : 0;
  return {seq_len - gather_len, gather_len < room ? gather_len : room};
}

}  // namespace megamla::plan
