// prefill_attention: every CPU implementation against the reference, max_logits, hostile input, and bad arguments.
// What it shares with decode_attention (sinks, live heads, merging) is tested there.
#include "megamla/prefill_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "cpu/prefill_attention.hpp"
#include "support/attention_bounds.hpp"
#include "support/bad_input.hpp"

namespace megamla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Params = megamla_prefill_attention_params;

struct Implementation {
  const char* name;
  Status (*supports)(const Params&);
  int64_t (*workspace)(const megamla_limits&);
  Status (*run)(const Params&, const megamla_exec&);
};
Status always(const Params&) { return {}; }
constexpr Implementation kImplementations[] = {
    {"avx512_bf16", cpu::prefill_attention_avx512_supports, cpu::prefill_attention_avx512_workspace,
     cpu::prefill_attention_avx512},
    {"onednn_bf16", cpu::prefill_attention_bf16_supports, cpu::prefill_attention_bf16_workspace,
     cpu::prefill_attention_bf16},
    {"onednn_f32", always, cpu::prefill_attention_f32_workspace, cpu::prefill_attention_f32},
};

megamla_limits limits_for(const Params& p) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  limits.compressed_width = p.indices.shape[1];
  return limits;
}

megamla_status run(const Params& p, megamla_device device) {
  megamla_exec exec = exec_on(device);
  const megamla_limits limits = limits_for(p);
  int64_t bytes = 0;
  EXPECT_EQ(megamla_prefill_attention_workspace_size(&limits, device, &bytes), MEGAMLA_OK);
  Workspace workspace(bytes);
  workspace.attach(exec);
  const megamla_status status = megamla_prefill_attention(&p, &exec);
  EXPECT_TRUE(workspace.guards_intact());
  return status;
}

// Rows of kv at odd indices are NaN: only entries past a row's length name them.
struct Problem {
  static constexpr int64_t kPositions = 50;
  int64_t tokens, heads, topk, rows;
  std::mt19937_64 random;
  TensorBuffer q, positions, cos_sin, kv, indices, lengths, sink, o, lse, max_logits;
  Params params;

  Problem(int64_t tokens_, int64_t heads_, int64_t topk_, int64_t rows_, bool chunked, uint64_t seed)
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

void expect_close(Problem& problem, const Implementation& implementation) {
  Params p = problem.params;
  TensorBuffer out(MEGAMLA_BF16, {problem.tokens, problem.heads, 512}, 16);
  TensorBuffer lse(MEGAMLA_F32, {problem.tokens, problem.heads});
  TensorBuffer max_logits(MEGAMLA_F32, {problem.tokens, problem.heads});
  OutputPair pair(problem.tokens, problem.heads, problem.tokens + 4 - problem.tokens % 4);
  p.lse = lse;
  p.max_logits = max_logits;
  Workspace workspace(implementation.workspace(limits_for(p)));
  megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU);
  workspace.attach(exec);
  const int64_t count = problem.tokens * problem.heads * 512;
  const auto truth = [&](int64_t i) {
    return problem.o.at<float>(i / 512 / problem.heads, i / 512 % problem.heads, i % 512);
  };
  p.output = MEGAMLA_OUTPUT_BF16;
  p.out = out;
  ASSERT_TRUE(implementation.run(p, exec).ok());
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
  ASSERT_TRUE(implementation.run(p, exec).ok());
  expect_within(
      fp8_bound(5), count,
      [&](int64_t i) { return pair.value(i / 512 / problem.heads, i / 512 % problem.heads, i % 512); }, truth);
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact() && max_logits.guards_intact());
  EXPECT_TRUE(pair.data.guards_intact() && pair.scale_memory.guards_intact() && workspace.guards_intact());
}

TEST(PrefillAttention, EveryImplementationIsWithinTheBoundsOfTheReference) {
  std::mt19937_64 random(5);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const auto pick = [&](uint64_t low, uint64_t high) {
      return static_cast<int64_t>(low + random() % (high - low + 1));
    };
    Problem problem(pick(1, 12), 8 * pick(1, 4), pick(3, 800), 2 * pick(1, 300), seed % 2 == 0, seed);
    problem.params.q_norm = seed % 4 == 3;
    problem.params.q_norm_eps = 1e-6F;
    ASSERT_EQ(run(problem.params, MEGAMLA_DEVICE_REFERENCE), MEGAMLA_OK) << megamla_last_error();
    for (const Implementation& implementation : kImplementations) {
      if (!implementation.supports(problem.params).ok()) continue;
      SCOPED_TRACE(std::string(implementation.name) + ", seed " + std::to_string(seed));
      expect_close(problem, implementation);
    }
  }
}

TEST(PrefillAttention, MaxLogitsOfHostileRows) {
  for (const megamla_device device : kDevices) {
    SCOPED_TRACE(device_name(device));
    Problem problem(5, 8, 16, 64, false, 1);
    problem.lengths.at<int32_t>(0) = INT32_MIN;
    problem.positions.at<int32_t>(1) = -1;
    problem.positions.at<int32_t>(2) = Problem::kPositions;
    problem.lengths.at<int32_t>(2) = 0;
    problem.lengths.at<int32_t>(3) = INT32_MAX;
    for (int64_t i = 0; i < 16; ++i)
      problem.indices.at<int32_t>(3, i) = i == 7 ? 8 : INT32_MAX - static_cast<int32_t>(i);
    ASSERT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
    for (int64_t h = 0; h < problem.heads; ++h) {
      EXPECT_EQ(problem.max_logits.at<float>(0, h), -kInfinity);
      EXPECT_EQ(problem.lse.at<float>(0, h), kInfinity);
      EXPECT_TRUE(std::isnan(problem.max_logits.at<float>(1, h)));
      EXPECT_TRUE(std::isnan(problem.lse.at<float>(1, h)));
      EXPECT_EQ(problem.max_logits.at<float>(2, h), -kInfinity);
      EXPECT_EQ(problem.lse.at<float>(2, h), kInfinity);
      EXPECT_NEAR(problem.max_logits.at<float>(3, h), problem.lse.at<float>(3, h), 1e-5);  // one key
      for (int64_t d = 0; d < 512; ++d) {
        for (const int64_t t : {0, 1, 2}) EXPECT_EQ(problem.o.at<float>(t, h, d), 0);
        EXPECT_TRUE(std::isfinite(problem.o.at<float>(3, h, d)) && std::isfinite(problem.o.at<float>(4, h, d)));
      }
    }
  }
}

TEST(PrefillAttention, NoTokensAndNoRows) {
  for (const megamla_device device : kDevices) {
    Problem none(0, 8, 16, 64, false, 1);
    EXPECT_EQ(run(none.params, device), MEGAMLA_OK) << megamla_last_error();
    Problem problem(2, 8, 16, 64, false, 1);
    problem.params.kv.shape[0] = 0;
    problem.params.kv.data = nullptr;
    EXPECT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
    EXPECT_EQ(problem.lse.at<float>(1, 7), kInfinity);
    EXPECT_EQ(problem.o.at<float>(1, 7, 511), 0);
  }
}

// More rows than a 16-bit grid has: every token reads the same query.
TEST(PrefillAttention, ManyTokens) {
  constexpr int64_t kTokens = 65536 + 3;
  Problem problem(1, 8, 4, 8, false, 1);
  problem.lengths.fill<int32_t>(4);
  ASSERT_EQ(run(problem.params, MEGAMLA_DEVICE_CPU), MEGAMLA_OK);
  TensorBuffer lse(MEGAMLA_F32, {kTokens, 8});
  OutputPair pair(kTokens, 8, kTokens / 4 * 4 + 4);
  Params p = problem.params;
  for (megamla_tensor* t : {&p.q, &p.positions, &p.indices, &p.topk_length}) {
    t->shape[0] = kTokens;
    t->stride[0] = 0;
  }
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = pair.data;
  p.out_scale = pair.scale;
  p.lse = lse;
  p.max_logits = {};
  ASSERT_EQ(run(p, MEGAMLA_DEVICE_CPU), MEGAMLA_OK) << megamla_last_error();
  for (const int64_t t : {int64_t{0}, int64_t{65535}, kTokens - 1}) {
    EXPECT_EQ(lse.at<float>(t, 5), problem.lse.at<float>(0, 5));
    EXPECT_NEAR(pair.value(t, 5, 100), problem.o.at<float>(0, 5, 100), 0.2);
  }
}

megamla_status call(const Params* p, const megamla_exec* exec) {
  alignas(256) static uint8_t workspace[32 << 20];
  megamla_exec with_workspace = *exec;
  with_workspace.workspace = workspace;
  with_workspace.workspace_bytes = sizeof(workspace);
  return megamla_prefill_attention(p, &with_workspace);
}

TEST(PrefillAttention, BadInput) {
  Problem problem(3, 16, 16, 64, false, 1);
  BadInput<Params> bad("prefill_attention", call, problem.params, {&problem.o, &problem.lse, &problem.max_logits});
  bad.tensor("q", &Params::q, true, 2);
  bad.tensor("positions", &Params::positions, true, 1);
  bad.tensor("cos_sin", &Params::cos_sin, false, 1);
  bad.tensor("kv", &Params::kv, true, 1);
  bad.tensor("indices", &Params::indices, true, 1);
  bad.tensor("topk_length", &Params::topk_length, false, 1);
  bad.tensor("attn_sink", &Params::attn_sink, false, 1);
  bad.tensor("out", &Params::out, true, 2);
  bad.tensor("lse", &Params::lse, false, 2);
  bad.tensor("max_logits", &Params::max_logits, false, 2);
  bad.output("out", &Params::out, {&Params::q, &Params::kv, &Params::cos_sin});
  bad.output("lse", &Params::lse, {&Params::cos_sin});
  bad.expect("max_logits", "max_logits over lse", [](Params& p) { p.max_logits = p.lse; });
  bad.expect("kv", "kv at 8 bytes", [](Params& p) { p.kv.data = static_cast<char*>(p.kv.data) + 8; });
  bad.expect("kv row stride", "kv rows of 516", [](Params& p) { p.kv.stride[0] = 516; });
  bad.expect("out_scale", "scales of fp32", [](Params& p) { p.out_scale = p.indices; });
  bad.expect("q_layout", "q_layout -1", [](Params& p) { p.q_layout = -1; });
  bad.expect("softmax_scale", "a NaN scale", [](Params& p) { p.softmax_scale = std::nanf(""); });
  bad.expect("live_heads", "-8 live heads", [](Params& p) { p.live_heads = -8; });
  bad.expect("output", "output 7", [](Params& p) { p.output = 7; });
  bad.expect("reserved", "reserved set", [](Params& p) { p.reserved = 1; });
}

}  // namespace
}  // namespace megamla::test
