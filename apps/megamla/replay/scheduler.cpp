#include "replay/scheduler.hpp"

#include <algorithm>
#include <stdexcept>

namespace megamla::replay {
namespace {

int64_t pages(int64_t tokens, int64_t page) { return (tokens + page - 1) / page; }

int64_t held(const std::vector<int32_t>& table) {
  return std::count_if(table.begin(), table.end(), [](int32_t block) { return block != kNoBlock; });
}

void release_all(BlockPool& pool, std::vector<int32_t>& table) {
  for (int32_t& block : table) {
    if (block != kNoBlock) pool.release(block);
    block = kNoBlock;
  }
}

}  // namespace

int64_t Scheduler::window_blocks_for(int64_t tokens, int64_t window, int64_t chunk) {
  // The window before the chunk, the chunk, and a page cut at either end.
  return std::min(pages(tokens, kWindowPageTokens), pages(window + chunk, kWindowPageTokens) + 2);
}

int64_t Scheduler::compressed_blocks_for(int64_t tokens) { return pages(tokens, kCompressedPageTokens); }

Scheduler::Scheduler(std::vector<Request> requests, const SchedulerLimits& limits)
    : limits_(limits),
      window_(limits.window_blocks),
      compressed_(limits.compressed_blocks),
      prefixes_(window_, compressed_) {
  for (Request& request : requests) waiting_.push_back(std::make_unique<Request>(std::move(request)));
  for (int64_t i = limits.max_requests; i >= 1; --i)
    free_states_.push_back(static_cast<int32_t>(i));  // 0 is the null block
}

// The next waiting request, with the prefix that is there for it; null if none may come yet.
Request* Scheduler::admit() {
  if (waiting_.empty() || static_cast<int64_t>(running_.size()) == limits_.max_requests) return nullptr;
  Request& request = *waiting_.front();
  const int64_t window_need = window_blocks_for(request.total(), limits_.window, limits_.max_batched_tokens);
  const int64_t compressed_need = compressed_blocks_for(request.total());
  prefixes_.make_room(reserved_window_ + window_need, reserved_compressed_ + compressed_need);
  if (window_.available() < reserved_window_ + window_need ||
      compressed_.available() < reserved_compressed_ + compressed_need) {
    if (running_.empty()) throw std::runtime_error("pool: expected room for one request, found too little");
    return nullptr;
  }
  // At least the prompt's last token is computed, so that the request has a first output.
  const int64_t reused = prefixes_.reuse(request, (request.prompt - 1) / io::kTraceBlockTokens);
  request.computed = request.reused = reused * io::kTraceBlockTokens;
  reused_tokens_ += request.reused;
  reserved_window_ += window_need - held(request.window_table);
  reserved_compressed_ += compressed_need - held(request.compressed_table);
  request.state_block = free_states_.back();
  free_states_.pop_back();
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return &request;
}

std::vector<Scheduled> Scheduler::next() {
  // Promised pages that running requests have left to the prefix cache come back here.
  prefixes_.make_room(reserved_window_, reserved_compressed_);
  std::vector<Scheduled> step;
  int64_t budget = limits_.max_batched_tokens;
  const auto schedule = [&](Request& request, int64_t query) {
    step.push_back({&request, query});
    budget -= query;
    give_pages(request, query);
    remember_prompt(request, query);
  };
  for (const auto& request : running_) {
    if (!request->prefilling() && budget > 0) schedule(*request, 1);
  }
  const auto schedule_prompt = [&](Request& request) {
    schedule(request, std::min(budget, request.prompt - request.computed));
  };
  for (const auto& request : running_) {
    if (request->prefilling() && budget > 0) schedule_prompt(*request);
  }
  while (budget > 0) {
    Request* request = admit();
    if (request == nullptr) break;
    schedule_prompt(*request);
  }
  return step;
}

void Scheduler::give_pages(Request& request, int64_t query) {
  const auto fill = [&](BlockPool& pool, std::vector<int32_t>& table, int64_t page, int64_t& reserved) {
    for (int64_t p = request.computed / page; p <= (request.computed + query - 1) / page; ++p) {
      int32_t& block = table[static_cast<size_t>(p)];
      if (block != kNoBlock) continue;
      block = pool.take();
      --reserved;
    }
  };
  fill(window_, request.window_table, kWindowPageTokens, reserved_window_);
  fill(compressed_, request.compressed_table, kCompressedPageTokens, reserved_compressed_);
}

// The blocks of the prompt that the step completes. A layer writes a step's rows before it attends to any, so that a
// request may share a prefix in the very step that computes it.
void Scheduler::remember_prompt(const Request& request, int64_t query) {
  const auto whole = static_cast<int64_t>(request.block_keys.size());
  const int64_t end = std::min(whole, (request.computed + query) / io::kTraceBlockTokens);
  for (int64_t b = request.computed / io::kTraceBlockTokens; b < end; ++b) prefixes_.insert(request, b);
}

// Pages that lie wholly before the window of the next token.
void Scheduler::free_left_pages(Request& request) {
  const int64_t first_needed = std::max<int64_t>(0, request.computed - limits_.window + 1) / kWindowPageTokens;
  for (int64_t p = first_needed - 1; p >= 0; --p) {
    int32_t& block = request.window_table[static_cast<size_t>(p)];
    if (block == kNoBlock) break;
    window_.release(block);
    block = kNoBlock;
    ++reserved_window_;  // the request may take another in its place
  }
}

void Scheduler::retire(Request& request) {
  reserved_window_ -=
      window_blocks_for(request.total(), limits_.window, limits_.max_batched_tokens) - held(request.window_table);
  reserved_compressed_ -= static_cast<int64_t>(request.compressed_table.size()) - held(request.compressed_table);
  release_all(window_, request.window_table);
  release_all(compressed_, request.compressed_table);
  free_states_.push_back(request.state_block);
}

void Scheduler::complete(const std::vector<Scheduled>& step) {
  for (const Scheduled& scheduled : step) {
    Request& request = *scheduled.request;
    request.computed += scheduled.query;
    free_left_pages(request);
    if (request.done()) retire(request);
  }
  std::erase_if(running_, [](const std::unique_ptr<Request>& request) { return request->done(); });
}

}  // namespace megamla::replay
