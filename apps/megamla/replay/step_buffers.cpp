#include "replay/step_buffers.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"

namespace megamla::replay {
namespace {

int64_t pages(int64_t tokens, int64_t page) { return (tokens + page - 1) / page; }

void copy_table(const std::vector<int32_t>& from, const megamla_tensor& to, int64_t row) {
  std::fill_n(&at<int32_t>(to, row, 0), to.shape[1], kNoBlock);
  std::copy(from.begin(), from.end(), &at<int32_t>(to, row, 0));
}

}  // namespace

StepBuffers::StepBuffers(app::Arena& arena, const Size& size) : arena_(arena), hidden_(size.hidden) {
  x_ = arena.tensor(MEGAMLA_BF16, {size.tokens, size.hidden});
  const std::pair<megamla_tensor*, megamla_tensor> views[] = {
      {&positions_, host_tensor(nullptr, MEGAMLA_I64, {size.tokens})},
      {&slots_, host_tensor(nullptr, MEGAMLA_I64, {size.tokens})},
      {&compressed_slots_[0], host_tensor(nullptr, MEGAMLA_I64, {size.tokens})},
      {&compressed_slots_[1], host_tensor(nullptr, MEGAMLA_I64, {size.tokens})},
      {&query_start_loc_, host_tensor(nullptr, MEGAMLA_I32, {size.requests + 1})},
      {&seq_lens_, host_tensor(nullptr, MEGAMLA_I32, {size.requests})},
      {&state_block_, host_tensor(nullptr, MEGAMLA_I32, {size.requests})},
      {&window_table_,
       host_tensor(nullptr, MEGAMLA_I32, {size.requests, pages(size.max_model_len, kWindowPageTokens)})},
      {&compressed_table_,
       host_tensor(nullptr, MEGAMLA_I32, {size.requests, pages(size.max_model_len, kCompressedPageTokens)})},
  };
  const auto bytes_of = [](const megamla_tensor& t) {
    return t.shape[0] * t.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  };
  constexpr int64_t kAlignment = 256;
  for (const auto& view : views) block_bytes_ += format::round_up(bytes_of(view.second), kAlignment);
  block_ = static_cast<char*>(arena.bytes(block_bytes_));
  if (arena.cuda_device() >= 0) pinned_ = app::gpu::Pinned(block_, block_bytes_);
  char* next = block_;
  for (const auto& [view, shape] : views) {
    *view = shape;
    view->data = next;
    view->cuda_device = arena.cuda_device();
    next += format::round_up(bytes_of(shape), kAlignment);
  }
  bytes_ = bytes_of(x_) + block_bytes_;
}

void StepBuffers::fill_tables(const Request& request, int64_t row) {
  at<int32_t>(state_block_, row) = request.state_block;
  copy_table(request.window_table, window_table_, row);
  copy_table(request.compressed_table, compressed_table_, row);
}

void StepBuffers::fill_token(const Request& request, int64_t position, int64_t row) {
  at<int64_t>(positions_, row) = position;
  const int64_t page = request.window_table[static_cast<size_t>(position / kWindowPageTokens)];
  at<int64_t>(slots_, row) = page * kWindowPageTokens + position % kWindowPageTokens;
  for (int64_t ratio = 1; ratio <= 2; ++ratio) {
    const int64_t per_page = kCompressedPageTokens / ratio;
    const int64_t key = position / ratio;
    const int64_t block = request.compressed_table[static_cast<size_t>(position / kCompressedPageTokens)];
    at<int64_t>(compressed_slots(ratio), row) = (position + 1) % ratio == 0 ? block * per_page + key % per_page : -1;
  }
  fill_hidden(request, position, hidden_, &at<uint16_t>(x_, row, 0));
}

StepBatch StepBuffers::fill(const std::vector<Scheduled>& step, int64_t rows) {
  int64_t t = 0;
  int64_t r = 0;
  at<int32_t>(query_start_loc_, 0) = 0;
  for (; r < static_cast<int64_t>(step.size()); ++r) {
    const Scheduled& scheduled = step[static_cast<size_t>(r)];
    const Request& request = *scheduled.request;
    fill_tables(request, r);
    at<int32_t>(seq_lens_, r) = static_cast<int32_t>(request.computed + scheduled.query);
    parallel_ranges(scheduled.query, resolve_threads(0), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) fill_token(request, request.computed + i, t + i);
    });
    t += scheduled.query;
    at<int32_t>(query_start_loc_, r + 1) = static_cast<int32_t>(t);
  }
  const int64_t tokens = t;
  for (; t < rows; ++t, ++r) {
    at<int64_t>(slots_, t) = at<int64_t>(compressed_slots(1), t) = at<int64_t>(compressed_slots(2), t) = -1;
    at<int32_t>(state_block_, r) = 0;
    at<int32_t>(seq_lens_, r) = 1;
    at<int32_t>(query_start_loc_, r + 1) = static_cast<int32_t>(t + 1);
  }
  arena_.upload(x_.data, tokens * hidden_ * 2);
  StepBatch b;
  megamla_step_metadata_init(&b.metadata);
  b.tokens = t;
  b.x = slice(x_, 0, t);
  b.metadata.query_start_loc = slice(query_start_loc_, 0, r + 1);
  b.metadata.seq_lens = slice(seq_lens_, 0, r);
  b.metadata.positions = slice(positions_, 0, t);
  b.metadata.slot_mapping = slice(slots_, 0, t);
  b.metadata.window_table = slice(window_table_, 0, r);
  b.metadata.compressed_table = slice(compressed_table_, 0, r);
  b.metadata.state_block = slice(state_block_, 0, r);
  b.metadata.step_id = ++step_id_;
  return b;
}

void StepBuffers::enqueue_upload() { arena_.enqueue_upload(block_, block_bytes_); }

void fill_hidden(const Request& request, int64_t position, int64_t width, uint16_t* row) {
  const auto block = static_cast<size_t>(position / io::kTraceBlockTokens);
  const bool named = position < request.prompt && block < request.hash_ids.size();
  // Two key spaces: prompt blocks that the trace names, and everything that belongs to one request.
  const uint64_t owner =
      named ? static_cast<uint64_t>(request.hash_ids[block]) * 2 : static_cast<uint64_t>(request.id) * 2 + 1;
  uint64_t state = (owner * 0x9E3779B97F4A7C15U) ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03U);
  for (int64_t i = 0; i < width; i += 4) {
    state += 0x9E3779B97F4A7C15U;
    uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    for (int64_t j = i; j < std::min(width, i + 4); ++j, z >>= 16) {
      // Sum of two bytes: a triangle around 0 within +-2.
      const int sum = static_cast<int>(z & 255U) + static_cast<int>(z >> 8 & 255U) - 255;
      row[j] = format::to_bf16(static_cast<float>(sum) / 128.0F).bits;
    }
  }
}

}  // namespace megamla::replay
