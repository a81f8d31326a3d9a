// prefill_attention: every implementation against the reference, max_logits, hostile input, and bad arguments.
// What it shares with decode_attention (sinks, live heads, merging) is tested there.
#include "megamla/prefill_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/bad_input.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Params = megamla_prefill_attention_params;

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

class PrefillAttentionOn : public EveryImplementation<Params> {};
MEGAMLA_EVERY_IMPLEMENTATION(PrefillAttentionOn);

TEST_P(PrefillAttentionOn, IsWithinTheBoundsOfTheReference) {
  std::mt19937_64 random(5);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const auto pick = [&](uint64_t low, uint64_t high) {
      return static_cast<int64_t>(low + random() % (high - low + 1));
    };
    PrefillProblem problem(pick(1, 12), 8 * pick(1, 4), pick(3, 800), 2 * pick(1, 300), seed % 2 == 0, seed);
    problem.params.q_norm = seed % 4 == 3;
    problem.params.q_norm_eps = 1e-6F;
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    expect_ok(run_reference(problem.params));
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_close(problem, [&](const Params& p) { return run(p); });
  }
}

TEST_P(PrefillAttentionOn, MaxLogitsOfHostileRows) {
  PrefillProblem problem(5, 8, 16, 64, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  problem.lengths.at<int32_t>(0) = INT32_MIN;
  problem.positions.at<int32_t>(1) = -1;
  problem.positions.at<int32_t>(2) = PrefillProblem::kPositions;
  problem.lengths.at<int32_t>(2) = 0;
  problem.lengths.at<int32_t>(3) = INT32_MAX;
  for (int64_t i = 0; i < 16; ++i) problem.indices.at<int32_t>(3, i) = i == 7 ? 8 : INT32_MAX - static_cast<int32_t>(i);
  expect_ok(run(problem.params));
  for (int64_t h = 0; h < problem.heads; ++h) {
    EXPECT_EQ(problem.max_logits.at<float>(0, h), -kInfinity);
    EXPECT_EQ(problem.lse.at<float>(0, h), kInfinity);
    EXPECT_TRUE(std::isnan(problem.max_logits.at<float>(1, h)));
    EXPECT_TRUE(std::isnan(problem.lse.at<float>(1, h)));
    EXPECT_EQ(problem.max_logits.at<float>(2, h), -kInfinity);
    EXPECT_EQ(problem.lse.at<float>(2, h), kInfinity);
    const float lse = problem.lse.at<float>(3, h);
    EXPECT_NEAR(problem.max_logits.at<float>(3, h), lse, 2e-5 * (1 + std::fabs(lse)));  // one key
    for (int64_t d = 0; d < 512; ++d) {
      for (const int64_t t : {0, 1, 2}) EXPECT_EQ(problem.o.at<float>(t, h, d), 0);
      EXPECT_TRUE(std::isfinite(problem.o.at<float>(3, h, d)) && std::isfinite(problem.o.at<float>(4, h, d)));
    }
  }
}

TEST(PrefillAttention, NoTokensAndNoRows) {
  for (const megamla_device device : kDevices) {
    PrefillProblem none(0, 8, 16, 64, false, 1);
    EXPECT_EQ(run(none.params, device), MEGAMLA_OK) << megamla_last_error();
    PrefillProblem problem(2, 8, 16, 64, false, 1);
    problem.params.kv.shape[0] = 0;
    problem.params.kv.data = nullptr;
    EXPECT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
    EXPECT_EQ(problem.lse.at<float>(1, 7), kInfinity);
    EXPECT_EQ(problem.o.at<float>(1, 7, 511), 0);
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
  PrefillProblem problem(3, 16, 16, 64, false, 1);
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
