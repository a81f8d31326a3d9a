// Request traces: one JSON object a line with timestamp (ms), input_length, output_length (tokens) and hash_ids
// (prefix-cache ids of 512-token blocks of the prompt). The form of the public Mooncake traces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.hpp"

namespace megamla::io {

constexpr int64_t kTraceBlockTokens = 512;

struct TraceRequest {
  int64_t timestamp_ms = 0;
  int64_t input_length = 0;
  int64_t output_length = 0;
  std::vector<int64_t> hash_ids;  // at most ceil(input_length / 512)
};

// At most `limit` requests (negative: all). Errors name file, line and field.
Result<std::vector<TraceRequest>> read_trace(const std::string& path, int64_t limit = -1);
Status write_trace(const std::vector<TraceRequest>& requests, const std::string& path);

}  // namespace megamla::io
