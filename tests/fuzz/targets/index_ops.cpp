// topk_to_slots, combine_topk_swa, swa_metadata, and the plan functions.
#include <numeric>

#include "fuzz/op_call.hpp"
#include "fuzz/targets.hpp"

namespace megamla::fuzz {
namespace {

// query_start_loc [requests + 1]: ascending, or now and then anything.
megamla_tensor start_locations(Views& v, int64_t requests, int64_t longest, int64_t* tokens) {
  const megamla_tensor t = v.integers(MEGAMLA_I32, {requests + 1}, 0, 0, longest);
  auto* values = data<int32_t>(t);
  const bool sane = v.choices().coin();
  *tokens = v.random(0, 24);
  if (!sane) return t;
  for (int64_t r = 0; r <= requests; ++r) values[r] = static_cast<int32_t>(v.random(0, longest));
  std::partial_sum(values, values + requests + 1, values);
  *tokens = values[requests] - values[0];
  return t;
}

void topk_to_slots(Choices& c) {
  OpCall<api::TopkToSlots> call("topk_to_slots", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t tokens = c.in(0, 20);
  const int64_t width = c.in(0, 40);
  const int64_t requests = c.in(0, 4);
  const int64_t columns = c.in(0, 8);
  p.slots_per_page = c.rarely() ? INT32_MAX : c.in(1, 9);
  p.num_pages = c.in(0, 9);
  p.topk = v.integers(MEGAMLA_I32, {tokens, width}, 1, -1, columns * std::min<int64_t>(p.slots_per_page, 9));
  p.token_to_req = v.integers(MEGAMLA_I32, {tokens}, 0, -1, requests);
  if (c.coin()) p.is_valid_token = v.integers(MEGAMLA_U8, {tokens}, 0, 0, 1);
  p.block_table = v.integers(MEGAMLA_I32, {requests, columns}, 1, -1, 9);
  p.slots = v.tensor(MEGAMLA_I32, {tokens, width}, 1, Use::kOutput);
  p.lens = v.tensor(MEGAMLA_I32, {tokens}, 0, Use::kOutput);
  call.inputs({&p.topk, &p.token_to_req, &p.is_valid_token, &p.block_table});
  call.outputs({&p.slots, &p.lens});
  call.run();
}

void combine_topk_swa(Choices& c) {
  OpCall<api::CombineTopkSwa> call("combine_topk_swa", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t requests = c.in(0, 4);
  int64_t tokens = 0;
  p.query_start_loc = start_locations(v, requests, 5, &tokens);
  const int64_t rows = tokens + c.in(0, 2);
  const int64_t width = c.in(0, 40);
  p.window = c.in(1, 140);
  p.compress_ratio = c.in(0, 2);
  p.n = c.in(0, 40);
  p.m = c.rarely() ? INT32_MAX / std::max<int64_t>(requests, 1) : p.n + c.in(0, 140);
  p.topk = v.integers(MEGAMLA_I32, {rows, width}, 1, -1, p.n);
  p.seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 60);
  p.gather_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 60);
  p.indices = v.tensor(MEGAMLA_I32, {rows, format::round_up(width + p.window, 128)}, 1, Use::kOutput);
  p.lens = v.tensor(MEGAMLA_I32, {rows}, 0, Use::kOutput);
  call.inputs({&p.topk, &p.query_start_loc, &p.seq_lens, &p.gather_lens});
  call.outputs({&p.indices, &p.lens});
  call.run();
}

void swa_metadata(Choices& c) {
  OpCall<api::SwaMetadata> call("swa_metadata", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t requests = c.in(0, 5);
  int64_t tokens = 0;
  p.query_start_loc = start_locations(v, requests, 4, &tokens);
  const int64_t padded = tokens + c.in(0, 3);
  p.page_size = c.rarely() ? INT32_MAX : c.in(1, 9);
  p.num_pages = c.in(0, 9);
  p.window = c.rarely() ? int64_t{1} << 30 : c.in(1, 20);
  p.num_decodes = c.in(0, requests);
  p.causal = c.coin() ? 0 : 1;
  p.seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 60);
  p.slot_mapping = v.integers(MEGAMLA_I64, {padded}, 0, -1, 100);
  p.block_table = v.integers(MEGAMLA_I32, {requests, c.in(0, 8)}, 1, -1, 9);
  if (c.coin()) p.replay_start = v.integers(MEGAMLA_I32, {requests}, 0, 0, 60);
  p.is_valid_token = v.tensor(MEGAMLA_U8, {padded}, 0, Use::kOutput);
  p.token_to_req = v.tensor(MEGAMLA_I32, {tokens + c.in(0, 4)}, 0, Use::kOutput);
  p.decode_swa_indices = v.tensor(MEGAMLA_I32, {std::min(padded, c.in(0, 24)), c.in(0, 30)}, 1, Use::kOutput);
  p.decode_swa_lens = v.tensor(MEGAMLA_I32, {padded}, 0, Use::kOutput);
  p.prefill_gather_lens = v.tensor(MEGAMLA_I32, {requests - p.num_decodes}, 0, Use::kOutput);
  call.inputs({&p.query_start_loc, &p.seq_lens, &p.slot_mapping, &p.block_table, &p.replay_start});
  call.outputs({&p.is_valid_token, &p.token_to_req, &p.decode_swa_indices, &p.decode_swa_lens, &p.prefill_gather_lens});
  call.run();
}

// --- plans: host functions without implementations to compare, so their own promises are checked ---

template <class T>
T* values_of(const megamla_tensor& t) {
  return data<T>(t);
}

void split_batch(Choices& c) {
  Views v(c);
  const int64_t requests = c.in(0, 12);
  const megamla_tensor lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 5);
  const int64_t threshold = c.rarely() ? c.number() : c.in(1, 4);
  megamla_batch_split split{-7, -7, -7, -7};
  const megamla_status status = megamla_split_batch(values_of<int32_t>(lens), requests, threshold, &split);
  if (status != MEGAMLA_OK) {
    require(split.num_decodes == -7 && split.num_prefill_tokens == -7, "split_batch: refused and written");
    return;
  }
  const int64_t tokens = std::accumulate(values_of<int32_t>(lens), values_of<int32_t>(lens) + requests, int64_t{0});
  require(split.num_decodes + split.num_prefills == requests, "split_batch: {} decodes and {} prefills of {}",
          split.num_decodes, split.num_prefills, requests);
  require(split.num_decode_tokens + split.num_prefill_tokens == tokens, "split_batch: tokens are lost");
}

void prefill_chunk_plan(Choices& c) {
  Views v(c);
  const int64_t requests = c.in(0, 12);
  const megamla_tensor seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 100);
  const megamla_tensor query_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 50);
  const Block chunks = GuardedMemory::instance().take(requests * static_cast<int64_t>(sizeof(megamla_prefill_chunk)),
                                                      alignof(megamla_prefill_chunk), kUnwritten);
  api::PrefillChunkPlan p;
  p.seq_lens = values_of<int32_t>(seq_lens);
  p.query_lens = values_of<int32_t>(query_lens);
  p.num_requests = requests;
  int64_t* const numbers[] = {&p.compress_ratio, &p.has_compressed, &p.chunk_size,
                              &p.window,         &p.max_model_len,  &p.max_num_batched_tokens};
  for (int64_t* number : numbers) *number = c.in(0, 2);
  p.window = c.in(1, 128);
  p.max_model_len = c.in(0, 2000);
  p.max_num_batched_tokens = c.in(0, 100);
  if (c.rarely()) *numbers[c.byte() % std::size(numbers)] = c.number();
  int64_t count = -7;
  if (megamla_prefill_chunk_plan(&p, reinterpret_cast<megamla_prefill_chunk*>(chunks.begin), &count) != MEGAMLA_OK) {
    require(count == -7, "prefill_chunk_plan: refused and written");
    return;
  }
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    megamla_prefill_chunk chunk{};
    std::memcpy(&chunk, chunks.begin + i * static_cast<int64_t>(sizeof(chunk)), sizeof(chunk));
    require(chunk.start == next && chunk.end > next && chunk.n >= 0 && chunk.m >= chunk.n,
            "prefill_chunk_plan: chunk {} is [{}, {}) after {}, n {}, m {}", i, chunk.start, chunk.end, next, chunk.n,
            chunk.m);
    next = chunk.end;
  }
  require(next == requests, "prefill_chunk_plan: {} of {} requests are in chunks", next, requests);
}

void compressed_slot_mapping(Choices& c) {
  Views v(c);
  const int64_t requests = c.in(0, 4);
  int64_t tokens = 0;
  megamla_tensor query_start_loc = start_locations(v, requests, 5, &tokens);
  megamla_tensor seq_lens = v.integers(MEGAMLA_I32, {requests}, 0, 0, 60);
  megamla_tensor block_table = v.integers(MEGAMLA_I32, {requests, c.in(0, 8)}, 1, -1, 9);
  megamla_tensor slot_mapping = v.tensor(MEGAMLA_I64, {tokens + c.in(0, 3)}, 0, Use::kOutput);
  const int64_t states = c.rarely() ? c.number() : c.in(1, 9);
  megamla_tensor* const all[] = {&query_start_loc, &seq_lens, &block_table, &slot_mapping};
  if (c.rarely()) all[c.byte() % std::size(all)]->shape[c.byte() % 2] = c.number();
  if (c.rarely()) all[c.byte() % std::size(all)]->stride[c.byte() % 2] = c.number();
  if (c.rarely()) all[c.byte() % std::size(all)]->data = all[c.byte() % std::size(all)]->data;
  if (!std::all_of(std::begin(all), std::end(all), [](const auto* t) { return is_backed(*t); })) return;
  const Snapshot before;
  if (megamla_compressed_slot_mapping(&query_start_loc, &seq_lens, &block_table, states, &slot_mapping) == MEGAMLA_OK) {
    return;
  }
  const Snapshot after;
  for (size_t i = 0; i < before.blocks(); ++i) {
    require(before.block(i) == after.block(i), "compressed_slot_mapping: refused and written");
  }
}

}  // namespace

void index_ops(std::span<const uint8_t> decisions) {
  GuardedMemory::instance().reset();
  Choices c(decisions);
  constexpr void (*kOps[])(Choices&) = {topk_to_slots, combine_topk_swa,   swa_metadata,
                                        split_batch,   prefill_chunk_plan, compressed_slot_mapping};
  kOps[c.byte() % std::size(kOps)](c);
}

}  // namespace megamla::fuzz
