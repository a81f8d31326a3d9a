// A step's tokens: request r owns tokens query_start_loc[r] .. query_start_loc[r + 1] - 1, the last ones of its
// sequence. The lists come from the caller's memory: whatever they hold, nothing here reads beyond them, and a token's
// index within its query lies within that query.
#pragma once

#include <cstdint>

#include "format/host_device.hpp"

namespace megamla::plan {

// What the lists say of a request.
struct Query {
  int64_t start, end;  // of its tokens
  int64_t seq_len;

  MEGAMLA_HD constexpr int64_t len() const { return end - start; }
  MEGAMLA_HD constexpr bool holds(int64_t token) const { return token >= start && token < end; }
  MEGAMLA_HD constexpr int64_t prefix() const { return seq_len - len(); }
  // Position of a token in its sequence; negative if the lengths contradict each other.
  MEGAMLA_HD constexpr int64_t position_of(int64_t token) const { return prefix() + (token - start); }
};

struct RaggedBatch {
  const int32_t* query_start_loc = nullptr;  // [num_requests + 1]
  const int32_t* seq_lens = nullptr;         // [num_requests], with the new tokens
  int64_t num_requests = 0;

  MEGAMLA_HD constexpr int64_t query_start(int64_t request) const { return query_start_loc[request]; }
  MEGAMLA_HD constexpr Query query(int64_t request) const {
    return {query_start(request), query_start(request + 1), seq_lens[request]};
  }

  // -1: in no request's query (padding).
  MEGAMLA_HD constexpr int64_t request_of(int64_t token) const {
    if (token < query_start(0) || token >= query_start(num_requests)) return -1;
    int64_t low = 0;  // query_start(low) <= token < query_start(high), all the way
    int64_t high = num_requests;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (query_start(middle) <= token ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace megamla::plan
