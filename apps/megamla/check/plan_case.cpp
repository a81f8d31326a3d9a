// prefill_chunk_plan, split_batch, compressed_slot_mapping: functions of lengths, without a device. All exact.
#include <algorithm>
#include <vector>

#include "check/case.hpp"
#include "check/runners.hpp"
#include "megamla/megamla.hpp"

namespace megamla::check {
namespace {

constexpr const char* kName = "plan";

// `count` lengths from `offset` of a list, as a row of in.mix asks for them.
const int32_t* lengths(const Run& run, const megamla_tensor& list, int64_t offset, int64_t count) {
  const int64_t size = list.shape[0];
  if (offset < 0 || count < 0 || offset > size || count > size - offset) {
    run.golden.refuse("in.mix", fmt::format("rows within {} lengths", size), fmt::format("{} + {}", offset, count));
  }
  return data<const int32_t>(list) + offset;
}

void compare_row(Run& run, const std::string& rule, const int64_t (&got)[4], const int64_t* expected,
                 const std::string& where) {
  run.verdict.require(rule, std::equal(got, got + 4, expected), [&] {
    return fmt::format("{}: expected {}, {}, {}, {}, found {}, {}, {}, {}", where, expected[0], expected[1],
                       expected[2], expected[3], got[0], got[1], got[2], got[3]);
  });
}

api::PrefillChunkPlan chunk_plan(const Run& run, const int64_t* mix, const megamla_tensor& seq_lens,
                                 const megamla_tensor& query_lens) {
  api::PrefillChunkPlan p;
  p.seq_lens = lengths(run, seq_lens, mix[0], mix[1]);
  p.query_lens = lengths(run, query_lens, mix[0], mix[1]);
  p.num_requests = mix[1];
  p.compress_ratio = mix[2];
  p.has_compressed = mix[3];
  p.chunk_size = mix[4];
  p.window = mix[5];
  p.max_model_len = mix[6];
  p.max_num_batched_tokens = mix[7];
  return p;
}

}  // namespace

void run_compressed_slot_mapping(Run& run) {
  Case& g = run.golden;
  const megamla_tensor starts = g.expected("in.query_start_loc", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor lens = g.expected("in.seq_lens", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor table = g.expected("in.block_table", MEGAMLA_I32, {Case::kAny, Case::kAny});
  megamla_tensor slots = output_like(run, "out.slot_mapping", MEGAMLA_I64, {Case::kAny});
  slots.cuda_device = -1;
  run.verdict.used(kName);
  expect_ok(megamla_compressed_slot_mapping(&starts, &lens, &table, g.integer("states_per_page"), &slots));
  compare_equal(run, "out.slot_mapping", slots);
}

void run_split_batch(Run& run) {
  Case& g = run.golden;
  const megamla_tensor mix = g.expected("in.mix", MEGAMLA_I64, {Case::kAny, 3});
  const megamla_tensor lens = g.expected("in.query_lens", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor expected = g.expected("out.split", MEGAMLA_I64, {mix.shape[0], 4});
  run.verdict.used(kName);
  for (int64_t i = 0; i < mix.shape[0]; ++i) {
    const int64_t* m = &at<const int64_t>(mix, i, 0);
    megamla_batch_split split{};
    expect_ok(megamla_split_batch(lengths(run, lens, m[0], m[1]), m[1], m[2], &split));
    compare_row(run, "out.split",
                {split.num_decodes, split.num_prefills, split.num_decode_tokens, split.num_prefill_tokens},
                &at<const int64_t>(expected, i, 0), fmt::format("mix {}", i));
  }
}

void run_prefill_chunk_plan(Run& run) {
  Case& g = run.golden;
  const megamla_tensor mix = g.expected("in.mix", MEGAMLA_I64, {Case::kAny, 8});
  const megamla_tensor seq_lens = g.expected("in.seq_lens", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor query_lens = g.expected("in.query_lens", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor expected = g.expected("out.plan", MEGAMLA_I64, {Case::kAny, 4});
  const megamla_tensor offsets = g.expected("out.plan_offsets", MEGAMLA_I64, {mix.shape[0] + 1});
  run.verdict.used(kName);
  for (int64_t i = 0; i < mix.shape[0]; ++i) {
    const api::PrefillChunkPlan p = chunk_plan(run, &at<const int64_t>(mix, i, 0), seq_lens, query_lens);
    std::vector<megamla_prefill_chunk> chunks(static_cast<size_t>(p.num_requests));
    int64_t count = 0;
    expect_ok(megamla_prefill_chunk_plan(&p, chunks.data(), &count));
    const int64_t begin = at<const int64_t>(offsets, i);
    const int64_t end = at<const int64_t>(offsets, i + 1);
    if (begin < 0 || end < begin || end > expected.shape[0]) {
      g.refuse("out.plan_offsets", fmt::format("rows of {}", expected.shape[0]), fmt::format("{} .. {}", begin, end));
    }
    run.verdict.require("chunks", count == end - begin,
                        [&] { return fmt::format("mix {}: expected {}, found {}", i, end - begin, count); });
    for (int64_t c = 0; c < std::min(count, end - begin); ++c) {
      const megamla_prefill_chunk& chunk = chunks[static_cast<size_t>(c)];
      compare_row(run, "out.plan", {chunk.start, chunk.end, chunk.n, chunk.m},
                  &at<const int64_t>(expected, begin + c, 0), fmt::format("mix {} chunk {}", i, c));
    }
  }
}

}  // namespace megamla::check
