// One request of a trace on its way through the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "io/trace.hpp"

namespace megamla::replay {

constexpr int64_t kWindowPageTokens = 32;
constexpr int64_t kCompressedPageTokens = 128;  // 128 / ratio slots
constexpr int32_t kNoBlock = -1;

struct Request {
  int64_t id = 0;
  int64_t prompt = 0;  // tokens, after capping
  int64_t output = 0;
  std::vector<int64_t> hash_ids;
  std::vector<uint64_t> block_keys;  // per whole 512-token block of the prompt: names it and all before it

  int64_t computed = 0;  // tokens whose rows are in the caches
  int64_t reused = 0;    // of these, taken from the prefix cache
  int32_t state_block = 0;
  std::vector<int32_t> window_table;  // kNoBlock where the window has left a page, or never needed it
  std::vector<int32_t> compressed_table;

  // The last output token is never fed back.
  int64_t total() const { return prompt + output - 1; }
  bool prefilling() const { return computed < prompt; }
  bool done() const { return computed == total(); }
};

// Prompt and output together at most max_tokens (0: uncapped), shortened in proportion; both at least 1.
Request make_request(int64_t id, const io::TraceRequest& traced, int64_t max_tokens);

}  // namespace megamla::replay
