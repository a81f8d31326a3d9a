// A call of prefill_attention for tests, and the comparison of its results with the reference's.
#pragma once

#include <cmath>
#include <random>

#include "megamla/prefill_attention.h"
#include "support/attention_bounds.hpp"
#include "support/every_implementation.hpp"

namespace megamla::test {

// Rows of kv at odd indices are NaN: only entries past a row's length name them.
struct PrefillProblem {
  static constexpr int64_t kPositions = 50;
  int64_t tokens, heads, topk, rows;
  std::mt19937_64 random;
  TensorBuffer q, positions, cos_sin, kv, indices, lengths, sink, o, lse, max_logits;
  megamla_prefill_attention_params params;

  PrefillProblem(int64_t tokens_, int64_t heads_, int64_t topk_, int64_t rows_, bool chunked, uint64_t seed)
      : tokens(tokens_),
        heads(heads_),
        topk(topk_),
        rows(rows_),
        random(seed),
        q(MEGAMLA_BF16, {tokens, heads, 512}, 8),
        positions(MEGAMLA_I32, {tokens}),
        cos_sin(MEGAMLA_F32, {kPositions, 64}),
        kv(MEGAMLA_BF16, {rows, 512}, 24),
        indices(MEGAMLA_I32, {tokens, topk}, 1),
        lengths(MEGAMLA_I32, {tokens}),
        sink(MEGAMLA_F32, {heads}),
        o(MEGAMLA_F32, {tokens, heads, 512}, 4),
        lse(MEGAMLA_F32, {tokens, heads}),
        max_logits(MEGAMLA_F32, {tokens, heads}, 1) {
    kv.fill<uint16_t>(0x7fc0);  // NaN
    for (int64_t r = 0; r < rows; r += 2) {
      for (int64_t d = 0; d < 512; ++d) kv.at<format::Bf16>(r, d) = format::to_bf16(normal());
    }
    for (int64_t t = 0; t < tokens; ++t) fill_row(t);
    for (int64_t p = 0; p < kPositions; ++p) {
      for (int64_t j = 0; j < 32; ++j) {
        cos_sin.at<float>(p, j) = std::cos(static_cast<float>(p * (j + 1)));
        cos_sin.at<float>(p, 32 + j) = std::sin(static_cast<float>(p * (j + 1)));
      }
    }
    for (int64_t h = 0; h < heads; ++h) sink.at<float>(h) = normal();
    megamla_prefill_attention_init(&params);
    params.q = q;
    params.q_layout = chunked ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
    params.positions = positions;
    params.cos_sin = cos_sin;
    params.kv = kv;
    params.indices = indices;
    params.topk_length = lengths;
    params.attn_sink = sink;
    params.output = MEGAMLA_OUTPUT_F32;
    params.out = o;
    params.lse = lse;
    params.max_logits = max_logits;
  }

  float normal() { return std::normal_distribution<float>()(random); }

  void fill_row(int64_t t) {
    positions.at<int32_t>(t) = static_cast<int32_t>(random() % kPositions);
    for (int64_t i = 0; i < heads * 512; ++i) (&q.at<format::Bf16>(t, 0))[i] = format::to_bf16(normal());
    lengths.at<int32_t>(t) = static_cast<int32_t>(topk - static_cast<int64_t>(random() % 3));
    for (int64_t i = 0; i < topk; ++i) {
      const auto row = static_cast<int32_t>(random() % static_cast<uint64_t>(rows / 2) * 2);
      const bool used = i < lengths.at<int32_t>(t);
      indices.at<int32_t>(t, i) = !used ? row + 1 : random() % 8 != 0 ? row : row % 4 == 0 ? -1 - row : row + (1 << 30);
    }
  }
};

// As expect_close of decode_problem.hpp, max_logits included.
template <class Run>
void expect_close(const PrefillProblem& problem, Run&& run) {
  megamla_prefill_attention_params p = problem.params;
  TensorBuffer out(MEGAMLA_BF16, {problem.tokens, problem.heads, 512}, 16);
  TensorBuffer lse(MEGAMLA_F32, {problem.tokens, problem.heads});
  TensorBuffer max_logits(MEGAMLA_F32, {problem.tokens, problem.heads});
  OutputPair pair(problem.tokens, problem.heads, problem.tokens + 4 - problem.tokens % 4);
  p.lse = lse;
  p.max_logits = max_logits;
  const int64_t count = problem.tokens * problem.heads * 512;
  const auto truth = [&](int64_t i) {
    return problem.o.at<float>(i / 512 / problem.heads, i / 512 % problem.heads, i % 512);
  };
  p.output = MEGAMLA_OUTPUT_BF16;
  p.out = out;
  expect_ok(run(p));
  expect_within(
      bf16_bound(5), count,
      [&](int64_t i) {
        return format::to_float(out.at<format::Bf16>(i / 512 / problem.heads, i / 512 % problem.heads, i % 512));
      },
      truth);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    expect_lse(&lse.at<float>(t, 0), &problem.lse.at<float>(t, 0), problem.heads);
    expect_lse(&max_logits.at<float>(t, 0), &problem.max_logits.at<float>(t, 0), problem.heads);
  }
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = pair.data;
  p.out_scale = pair.scale;
  expect_ok(run(p));
  expect_within(
      fp8_bound(5), count,
      [&](int64_t i) { return pair.value(i / 512 / problem.heads, i / 512 % problem.heads, i % 512); }, truth);
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact() && max_logits.guards_intact());
  EXPECT_TRUE(pair.data.guards_intact() && pair.scale_memory.guards_intact());
}

}  // namespace megamla::test
