// The index transforms, and the slot mapping of compressed rows.
#include "call.hpp"

namespace megamla::python {
namespace {

void topk_to_slots(DLTensor* topk, DLTensor* token_to_req, MaybeTensor is_valid_token, DLTensor* block_table,
                   int64_t slots_per_page, int64_t num_pages, DLTensor* slots, DLTensor* lens, int64_t device,
                   int64_t num_threads, MaybeTensor workspace) {
  Call call("topk_to_slots", {device, num_threads, workspace});
  megamla_topk_to_slots_params p;
  megamla_topk_to_slots_init(&p);
  p.topk = call.tensor("topk", topk, {MEGAMLA_I32});
  p.token_to_req = call.tensor("token_to_req", token_to_req, {MEGAMLA_I32});
  p.is_valid_token = call.tensor("is_valid_token", is_valid_token, {MEGAMLA_U8});
  p.block_table = call.tensor("block_table", block_table, {MEGAMLA_I32});
  p.slots_per_page = slots_per_page;
  p.num_pages = num_pages;
  p.slots = call.tensor("slots", slots, {MEGAMLA_I32});
  p.lens = call.tensor("lens", lens, {MEGAMLA_I32});
  call.run(megamla_topk_to_slots, p);
}

void combine_topk_swa(DLTensor* topk, DLTensor* query_start_loc, DLTensor* seq_lens, DLTensor* gather_lens,
                      int64_t window, int64_t compress_ratio, int64_t m, int64_t n, DLTensor* indices, DLTensor* lens,
                      int64_t device, int64_t num_threads, MaybeTensor workspace) {
  Call call("combine_topk_swa", {device, num_threads, workspace});
  megamla_combine_topk_swa_params p;
  megamla_combine_topk_swa_init(&p);
  p.topk = call.tensor("topk", topk, {MEGAMLA_I32});
  p.query_start_loc = call.tensor("query_start_loc", query_start_loc, {MEGAMLA_I32});
  p.seq_lens = call.tensor("seq_lens", seq_lens, {MEGAMLA_I32});
  p.gather_lens = call.tensor("gather_lens", gather_lens, {MEGAMLA_I32});
  p.window = window;
  p.compress_ratio = compress_ratio;
  p.m = m;
  p.n = n;
  p.indices = call.tensor("indices", indices, {MEGAMLA_I32});
  p.lens = call.tensor("lens", lens, {MEGAMLA_I32});
  call.run(megamla_combine_topk_swa, p);
}

void swa_metadata(DLTensor* query_start_loc, DLTensor* seq_lens, DLTensor* slot_mapping, DLTensor* block_table,
                  MaybeTensor replay_start, int64_t page_size, int64_t num_pages, int64_t window, int64_t num_decodes,
                  bool causal, DLTensor* is_valid_token, DLTensor* token_to_req, DLTensor* decode_swa_indices,
                  DLTensor* decode_swa_lens, DLTensor* prefill_gather_lens, int64_t device, int64_t num_threads,
                  MaybeTensor workspace) {
  Call call("swa_metadata", {device, num_threads, workspace});
  megamla_swa_metadata_params p;
  megamla_swa_metadata_init(&p);
  p.query_start_loc = call.tensor("query_start_loc", query_start_loc, {MEGAMLA_I32});
  p.seq_lens = call.tensor("seq_lens", seq_lens, {MEGAMLA_I32});
  p.slot_mapping = call.tensor("slot_mapping", slot_mapping, {MEGAMLA_I64});
  p.block_table = call.tensor("block_table", block_table, {MEGAMLA_I32});
  p.replay_start = call.tensor("replay_start", replay_start, {MEGAMLA_I32});
  p.page_size = page_size;
  p.num_pages = num_pages;
  p.window = window;
  p.num_decodes = num_decodes;
  p.causal = causal ? 1 : 0;
  p.is_valid_token = call.tensor("is_valid_token", is_valid_token, {MEGAMLA_U8});
  p.token_to_req = call.tensor("token_to_req", token_to_req, {MEGAMLA_I32});
  p.decode_swa_indices = call.tensor("decode_swa_indices", decode_swa_indices, {MEGAMLA_I32});
  p.decode_swa_lens = call.tensor("decode_swa_lens", decode_swa_lens, {MEGAMLA_I32});
  p.prefill_gather_lens = call.tensor("prefill_gather_lens", prefill_gather_lens, {MEGAMLA_I32});
  call.run(megamla_swa_metadata, p);
}

void compressed_slot_mapping(DLTensor* query_start_loc, DLTensor* seq_lens, DLTensor* block_table,
                             int64_t states_per_page, DLTensor* out) {
  Call call("compressed_slot_mapping", {MEGAMLA_DEVICE_CPU, 0, {}});
  const megamla_tensor starts = call.tensor("query_start_loc", query_start_loc, {MEGAMLA_I32});
  const megamla_tensor lens = call.tensor("seq_lens", seq_lens, {MEGAMLA_I32});
  const megamla_tensor table = call.tensor("block_table", block_table, {MEGAMLA_I32});
  const megamla_tensor slots = call.tensor("slot_mapping", out, {MEGAMLA_I64});
  check(megamla_compressed_slot_mapping(&starts, &lens, &table, states_per_page, &slots));
}

}  // namespace
}  // namespace megamla::python

TVM_FFI_DLL_EXPORT_TYPED_FUNC(topk_to_slots, megamla::python::topk_to_slots);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(combine_topk_swa, megamla::python::combine_topk_swa);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(swa_metadata, megamla::python::swa_metadata);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(compressed_slot_mapping, megamla::python::compressed_slot_mapping);
