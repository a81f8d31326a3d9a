// Continuous batching over paged caches: decodes first, prompts in chunks. A request is admitted when the step has room
// for tokens of its prompt and the pools for all of its pages: late, so that it finds as much of its prefix as can be.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "replay/prefix_cache.hpp"
#include "replay/request.hpp"

namespace megamla::replay {

struct SchedulerLimits {
  int64_t max_batched_tokens = 2048;
  int64_t max_requests = 64;
  int64_t window = 128;
  int64_t window_blocks = 0;
  int64_t compressed_blocks = 0;
};

struct Scheduled {
  Request* request;
  int64_t query;  // new tokens: positions computed .. computed + query - 1
};

class Scheduler {
 public:
  Scheduler(std::vector<Request> requests, const SchedulerLimits& limits);

  // The next step, decodes first; empty when every request is done. Pages for its tokens are in the tables.
  std::vector<Scheduled> next();
  // The step's rows are in the caches: frees pages that the window has left, retires what is done.
  void complete(const std::vector<Scheduled>& step);

  int64_t remaining() const { return static_cast<int64_t>(waiting_.size() + running_.size()); }
  const BlockPool& window_blocks() const { return window_; }
  const BlockPool& compressed_blocks() const { return compressed_; }
  int64_t reused_tokens() const { return reused_tokens_; }
  // Forgets the prefixes; afterwards no block is in use if every request is done.
  void forget_prefixes() { prefixes_.clear(); }

  // Blocks that one request of `tokens` tokens may hold at a time, with chunks of `chunk` tokens.
  static int64_t window_blocks_for(int64_t tokens, int64_t window, int64_t chunk);
  static int64_t compressed_blocks_for(int64_t tokens);

 private:
  Request* admit();
  void give_pages(Request& request, int64_t query);
  void remember_prompt(const Request& request, int64_t query);
  void free_left_pages(Request& request);
  void retire(Request& request);

  SchedulerLimits limits_;
  BlockPool window_;
  BlockPool compressed_;
  PrefixCache prefixes_;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_;
  std::vector<int32_t> free_states_;
  int64_t reserved_window_ = 0;  // blocks promised to running requests and not yet taken
  int64_t reserved_compressed_ = 0;
  int64_t reused_tokens_ = 0;
};

}  // namespace megamla::replay
