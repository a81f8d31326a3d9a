// swa_metadata, global_topk, combine_topk_swa: lists of slots and rows, all exact.
#include "check/call_op.hpp"
#include "check/runners.hpp"

namespace megamla::check {

void run_swa_metadata(Run& run) {
  Case& g = run.golden;
  api::SwaMetadata p;
  p.query_start_loc = g.input("in.query_start_loc");
  p.seq_lens = g.input("in.seq_lens");
  p.slot_mapping = g.input("in.slot_mapping");
  p.block_table = g.input("in.block_table");
  p.replay_start = g.optional_input("in.replay_start");
  p.page_size = g.integer("block_size");
  p.window = g.integer("window");
  p.num_decodes = g.integer("num_decodes");
  p.causal = static_cast<int32_t>(g.integer("causal", 0, 1));
  p.is_valid_token = output_like(run, "out.is_valid_token", MEGAMLA_U8, {Case::kAny});
  p.token_to_req = output_like(run, "out.token_to_req", MEGAMLA_I32, {Case::kAny});
  p.decode_swa_indices = output_like(run, "out.decode_swa_indices", MEGAMLA_I32, {Case::kAny, Case::kAny});
  p.decode_swa_lens = output_like(run, "out.decode_swa_lens", MEGAMLA_I32, {Case::kAny});
  p.prefill_gather_lens = output_like(run, "out.prefill_gather_lens", MEGAMLA_I32, {Case::kAny});
  call_op(run, p);
  compare_equal(run, "out.is_valid_token", p.is_valid_token);
  compare_equal(run, "out.token_to_req", p.token_to_req);
  compare_equal(run, "out.decode_swa_indices", p.decode_swa_indices);
  compare_equal(run, "out.decode_swa_lens", p.decode_swa_lens);
  compare_equal(run, "out.prefill_gather_lens", p.prefill_gather_lens);
}

void run_global_topk(Run& run) {
  Case& g = run.golden;
  api::TopkToSlots p;
  p.topk = g.input("in.topk", MEGAMLA_I32, {Case::kAny, Case::kAny});
  const int64_t tokens = p.topk.shape[0];
  const int64_t width = p.topk.shape[1];
  p.token_to_req = g.input("in.token_to_req");
  p.is_valid_token = g.input("in.is_valid_token", MEGAMLA_U8, {tokens});
  p.block_table = g.input("in.block_table");
  p.slots_per_page = g.integer("block_size");
  p.slots = output_like(run, "out.indices", MEGAMLA_I32, {tokens, width});
  p.lens = output_like(run, "out.lens", MEGAMLA_I32, {tokens});
  call_op(run, p);
  compare_equal(run, "out.lens", p.lens);
  // The slots of an invalid token may be anything: its length is 0.
  const megamla_tensor expected = g.expected("out.indices", MEGAMLA_I32, {tokens, width});
  run.verdict.require("out.indices", true, "");
  for (int64_t i = 0; i < tokens * width; ++i) {
    if (at<const uint8_t>(p.is_valid_token, i / width) == 0) continue;
    const int32_t got = data<const int32_t>(p.slots)[i];
    const int32_t ref = data<const int32_t>(expected)[i];
    run.verdict.require("out.indices", got == ref, [&] {
      return fmt::format("token {} column {}: expected {}, found {}", i / width, i % width, ref, got);
    });
  }
}

void run_combine_topk_swa(Run& run) {
  Case& g = run.golden;
  api::CombineTopkSwa p;
  p.topk = g.input("in.topk");
  p.query_start_loc = g.input("in.query_start_loc");
  p.seq_lens = g.input("in.seq_lens");
  p.gather_lens = g.input("in.gather_lens");
  p.window = g.integer("window");
  p.compress_ratio = g.integer("compress_ratio");
  p.m = g.integer("M");
  p.n = g.integer("N");
  p.indices = output_like(run, "out.indices", MEGAMLA_I32, {Case::kAny, Case::kAny});
  p.lens = output_like(run, "out.lens", MEGAMLA_I32, {Case::kAny});
  call_op(run, p);
  compare_equal(run, "out.indices", p.indices);
  compare_equal(run, "out.lens", p.lens);
}

}  // namespace megamla::check
