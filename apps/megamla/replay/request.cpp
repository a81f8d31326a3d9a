#include "replay/request.hpp"

#include <algorithm>

namespace megamla::replay {

Request make_request(int64_t id, const io::TraceRequest& traced, int64_t max_tokens) {
  Request r;
  r.id = id;
  r.prompt = std::max<int64_t>(traced.input_length, 1);
  r.output = std::max<int64_t>(traced.output_length, 1);
  const int64_t length = r.prompt + r.output;
  if (max_tokens > 0 && length > max_tokens) {
    r.output = std::clamp<int64_t>(r.output * max_tokens / length, 1, max_tokens - 1);
    r.prompt = max_tokens - r.output;
  }
  r.hash_ids = traced.hash_ids;
  uint64_t key = 0x243F6A8885A308D3U;
  const int64_t whole = std::min<int64_t>(r.prompt / io::kTraceBlockTokens, static_cast<int64_t>(r.hash_ids.size()));
  for (int64_t b = 0; b < whole; ++b) {
    key = (key ^ static_cast<uint64_t>(r.hash_ids[static_cast<size_t>(b)])) * 0x9E3779B97F4A7C15U;
    key ^= key >> 32;
    r.block_keys.push_back(key);
  }
  r.window_table.assign(static_cast<size_t>((r.total() + kWindowPageTokens - 1) / kWindowPageTokens), kNoBlock);
  r.compressed_table.assign(static_cast<size_t>((r.total() + kCompressedPageTokens - 1) / kCompressedPageTokens),
                            kNoBlock);
  return r;
}

}  // namespace megamla::replay
