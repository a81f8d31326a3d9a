// topk_to_slots, combine_topk_swa, swa_metadata, and the functions of host_functions.cpp.
#include "fuzz/op_call.hpp"
#include "fuzz/targets.hpp"
#include "fuzz/targets/host_functions.hpp"

namespace megamla::fuzz {
namespace {

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

}  // namespace

void index_ops(std::span<const uint8_t> decisions) {
  GuardedMemory::instance().reset();
  Choices c(decisions);
  constexpr void (*kOps[])(Choices&) = {
      topk_to_slots,           combine_topk_swa, swa_metadata, split_batch,  prefill_chunk_plan,
      compressed_slot_mapping, builtin_topk,     output_pair,  layer_config, workspace};
  kOps[c.byte() % std::size(kOps)](c);
}

}  // namespace megamla::fuzz
