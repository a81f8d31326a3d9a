// swa_metadata, global_topk, combine_topk_swa, and the plan functions: all exact.
#include <algorithm>

#include "check/call_op.hpp"
#include "megamla/index_ops.h"
#include "megamla/plan.h"

namespace megamla::check {
namespace {

constexpr uint8_t kUnwritten = 0xa5;

void equal(Run& run, const std::string& name, const megamla_tensor& got) {
  const megamla_tensor expected = run.golden.expected("out." + name);
  int64_t bytes = megamla_dtype_size(static_cast<megamla_dtype>(got.dtype));
  for (int d = 0; d < got.ndim; ++d) bytes *= got.shape[d];
  run.verdict.equal(name, got.data, expected.data, bytes);
}

megamla_tensor like(Run& run, const std::string& name) {
  const megamla_tensor expected = run.golden.expected("out." + name);
  const auto dtype = static_cast<megamla_dtype>(expected.dtype);
  return expected.ndim == 1 ? run.arena().tensor(dtype, {expected.shape[0]}, kUnwritten)
                            : run.arena().tensor(dtype, {expected.shape[0], expected.shape[1]}, kUnwritten);
}

}  // namespace

void run_swa_metadata(Run& run) {
  Case& g = run.golden;
  megamla_swa_metadata_params p;
  megamla_swa_metadata_init(&p);
  p.query_start_loc = g.input("in.query_start_loc");
  p.seq_lens = g.input("in.seq_lens");
  p.slot_mapping = g.input("in.slot_mapping");
  p.block_table = g.input("in.block_table");
  p.replay_start = g.optional_input("in.replay_start");
  p.page_size = g.integer("block_size");
  p.window = g.integer("window");
  p.num_decodes = g.integer("num_decodes");
  p.causal = static_cast<int32_t>(g.integer("causal"));
  p.is_valid_token = like(run, "is_valid_token");
  p.token_to_req = like(run, "token_to_req");
  p.decode_swa_indices = like(run, "decode_swa_indices");
  p.decode_swa_lens = like(run, "decode_swa_lens");
  p.prefill_gather_lens = like(run, "prefill_gather_lens");
  call_op(run, p, megamla_swa_metadata_implementation, megamla_swa_metadata);
  equal(run, "is_valid_token", p.is_valid_token);
  equal(run, "token_to_req", p.token_to_req);
  equal(run, "decode_swa_indices", p.decode_swa_indices);
  equal(run, "decode_swa_lens", p.decode_swa_lens);
  equal(run, "prefill_gather_lens", p.prefill_gather_lens);
}

void run_global_topk(Run& run) {
  Case& g = run.golden;
  megamla_topk_to_slots_params p;
  megamla_topk_to_slots_init(&p);
  p.topk = g.input("in.topk");
  p.token_to_req = g.input("in.token_to_req");
  p.is_valid_token = g.input("in.is_valid_token");
  p.block_table = g.input("in.block_table");
  p.slots_per_page = g.integer("block_size");
  p.slots = like(run, "indices");
  p.lens = like(run, "lens");
  call_op(run, p, megamla_topk_to_slots_implementation, megamla_topk_to_slots);
  equal(run, "lens", p.lens);
  // The slots of an invalid token may be anything: its length is 0.
  const megamla_tensor expected = g.expected("out.indices");
  for (int64_t t = 0; t < expected.shape[0]; ++t) {
    if (at<const uint8_t>(p.is_valid_token, t) == 0) continue;
    run.verdict.equal(fmt::format("slots of token {}", t), &at<const int32_t>(p.slots, t, 0),
                      &at<const int32_t>(expected, t, 0), expected.shape[1] * 4);
  }
}

void run_combine_topk_swa(Run& run) {
  Case& g = run.golden;
  megamla_combine_topk_swa_params p;
  megamla_combine_topk_swa_init(&p);
  p.topk = g.input("in.topk");
  p.query_start_loc = g.input("in.query_start_loc");
  p.seq_lens = g.input("in.seq_lens");
  p.gather_lens = g.input("in.gather_lens");
  p.window = g.integer("window");
  p.compress_ratio = g.integer("compress_ratio");
  p.m = g.integer("M");
  p.n = g.integer("N");
  p.indices = like(run, "indices");
  p.lens = like(run, "lens");
  call_op(run, p, megamla_combine_topk_swa_implementation, megamla_combine_topk_swa);
  equal(run, "indices", p.indices);
  equal(run, "lens", p.lens);
}

void run_compressed_slot_mapping(Run& run) {
  Case& g = run.golden;
  const megamla_tensor starts = g.input("in.query_start_loc");
  const megamla_tensor lens = g.input("in.seq_lens");
  const megamla_tensor table = g.input("in.block_table");
  const megamla_tensor slots = like(run, "slot_mapping");
  run.verdict.set_implementation("plan");
  expect_ok(megamla_compressed_slot_mapping(&starts, &lens, &table, g.integer("states_per_page"), &slots));
  equal(run, "slot_mapping", slots);
}

void run_split_batch(Run& run) {
  Case& g = run.golden;
  const megamla_tensor mix = g.input("in.mix");
  const megamla_tensor lens = g.input("in.query_lens");
  const megamla_tensor expected = g.expected("out.split");
  run.verdict.set_implementation("plan");
  for (int64_t i = 0; i < mix.shape[0]; ++i) {
    megamla_batch_split split{};
    expect_ok(megamla_split_batch(data<const int32_t>(lens) + at<const int64_t>(mix, i, 0),
                                  at<const int64_t>(mix, i, 1), at<const int64_t>(mix, i, 2), &split));
    const int64_t got[4] = {split.num_decodes, split.num_prefills, split.num_decode_tokens, split.num_prefill_tokens};
    run.verdict.equal(fmt::format("mix {}", i), got, &at<const int64_t>(expected, i, 0), sizeof(got));
  }
}

void run_prefill_chunk_plan(Run& run) {
  Case& g = run.golden;
  const megamla_tensor mix = g.input("in.mix");
  const megamla_tensor seq_lens = g.input("in.seq_lens");
  const megamla_tensor query_lens = g.input("in.query_lens");
  const megamla_tensor expected = g.expected("out.plan");
  const megamla_tensor offsets = g.expected("out.plan_offsets");
  run.verdict.set_implementation("plan");
  for (int64_t i = 0; i < mix.shape[0]; ++i) {
    const int64_t* m = &at<const int64_t>(mix, i, 0);
    megamla_prefill_chunk_plan_params p{};
    p.struct_size = sizeof(p);
    p.seq_lens = data<const int32_t>(seq_lens) + m[0];
    p.query_lens = data<const int32_t>(query_lens) + m[0];
    p.num_requests = m[1];
    p.compress_ratio = m[2];
    p.has_compressed = m[3];
    p.chunk_size = m[4];
    p.window = m[5];
    p.max_model_len = m[6];
    p.max_num_batched_tokens = m[7];
    std::vector<megamla_prefill_chunk> chunks(static_cast<size_t>(std::max<int64_t>(m[1], 1)));
    int64_t count = 0;
    expect_ok(megamla_prefill_chunk_plan(&p, chunks.data(), &count));
    const int64_t begin = at<const int64_t>(offsets, i);
    const int64_t end = at<const int64_t>(offsets, i + 1);
    run.verdict.require(fmt::format("mix {}", i), count == end - begin,
                        fmt::format("expected {} chunks, found {}", end - begin, count));
    for (int64_t c = 0; c < std::min(count, end - begin); ++c) {
      const megamla_prefill_chunk& chunk = chunks[static_cast<size_t>(c)];
      const int64_t got[4] = {chunk.start, chunk.end, chunk.n, chunk.m};
      run.verdict.equal(fmt::format("mix {} chunk {}", i, c), got, &at<const int64_t>(expected, begin + c, 0),
                        sizeof(got));
    }
  }
}

}  // namespace megamla::check
