// decode_attention: every implementation against the reference, the rules for hostile input, and bad arguments. Faults
// that others met have their own tests in field_reports/.
#include "megamla/decode_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/bad_input.hpp"
#include "support/decode_problem.hpp"

namespace megamla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Params = megamla_decode_attention_params;

megamla_limits limits_for(const Params& p) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  limits.window_width = p.window_slots.shape[1];
  limits.compressed_width = present(p.compressed) ? p.compressed_slots.shape[1] : 0;
  return limits;
}

// With exactly the workspace that is asked for.
megamla_status run(const Params& p, megamla_device device, int threads = 0) {
  megamla_exec exec = exec_on(device, threads);
  megamla_limits limits = limits_for(p);
  limits.num_threads = threads;
  int64_t bytes = 0;
  EXPECT_EQ(megamla_decode_attention_workspace_size(&limits, device, &bytes), MEGAMLA_OK);
  Workspace workspace(bytes);
  workspace.attach(exec);
  const megamla_status status = megamla_decode_attention(&p, &exec);
  EXPECT_TRUE(workspace.guards_intact());
  return status;
}

// Random shapes of every pair of formats, layouts and page sizes.
std::vector<DecodeShape> shapes() {
  std::vector<DecodeShape> all;
  std::mt19937_64 random(3);
  const int64_t pages[] = {1, 2, 53, 61};
  for (int i = 0; i < 16; ++i) {
    DecodeShape s;
    s.tokens = 1 + static_cast<int64_t>(random() % 7);
    s.heads = 8 * (1 + static_cast<int64_t>(random() % 4));
    s.window_width = 1 + static_cast<int64_t>(random() % 140);
    s.compressed_width = i % 4 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 700);
    s.window_page = pages[random() % 4];
    s.compressed_page = pages[random() % 4];
    s.chunked = random() % 2 == 0;
    s.window.layout = random() % 2 == 0 ? MEGAMLA_PAGE_PLANAR : MEGAMLA_PAGE_INTERLEAVED;
    s.compressed = {i % 2 == 0 ? MEGAMLA_KV_NVFP4_288 : MEGAMLA_KV_FP8_528,
                    random() % 2 == 0 ? MEGAMLA_PAGE_PLANAR : MEGAMLA_PAGE_INTERLEAVED};
    if (i % 5 == 4) s.window = s.compressed = {MEGAMLA_KV_FP8_584, MEGAMLA_PAGE_PLANAR};
    all.push_back(s);
  }
  return all;
}

class DecodeAttentionOn : public EveryImplementation<Params> {};
MEGAMLA_EVERY_IMPLEMENTATION(DecodeAttentionOn);

TEST_P(DecodeAttentionOn, IsWithinTheBoundsOfTheReference) {
  uint64_t seed = 0;
  for (const DecodeShape& shape : shapes()) {
    DecodeProblem problem(shape, ++seed);
    problem.params.q_norm = seed % 3 == 0;
    problem.params.q_norm_eps = 1e-6F;
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    expect_ok(run_reference(problem.params));
    SCOPED_TRACE("shape " + std::to_string(seed));
    expect_close(problem, [&](const Params& p) { return run(p); });
  }
}

TEST_P(DecodeAttentionOn, BitsDoNotDependOnThreads) {
  DecodeShape shape;
  shape.tokens = 9;
  shape.compressed_width = 900;
  DecodeProblem problem(shape);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_ok(run(problem.params, 1));
  const auto first = problem.o.values<float>();
  for (const int threads : {2, 5, 8}) {
    problem.o.refill();
    expect_ok(run(problem.params, threads));
    EXPECT_TRUE(same_bytes(first.data(), problem.o.as<float>(), static_cast<int64_t>(first.size() * sizeof(float))));
  }
}

TEST_P(DecodeAttentionOn, OneLongAnd64ShortRequestsHaveTheSameBitsOnAnyThreads) {
  DecodeProblem problem({.tokens = 65, .heads = 8, .window_width = 32, .compressed_width = 1100});
  for (int64_t t = 0; t < 65; ++t) problem.compressed_lens.at<int32_t>(t) = t == 64 ? 1100 : 0;
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_ok(run(problem.params, 1));
  const auto first = problem.o.values<float>();
  for (const int threads : {2, 3}) {
    problem.o.refill();
    expect_ok(run(problem.params, threads));
    EXPECT_TRUE(same_bytes(first.data(), problem.o.as<float>(), static_cast<int64_t>(first.size() * sizeof(float))));
  }
}

TEST_P(DecodeAttentionOn, HostileRowsFollowTheContract) {
  DecodeShape shape;
  shape.tokens = 8;
  DecodeProblem problem(shape);
  const auto slots = static_cast<int32_t>(problem.window.num_slots());
  problem.window_lens.at<int32_t>(0) = -5;         // clamped to 0: no valid key
  problem.window_lens.at<int32_t>(1) = INT32_MAX;  // clamped to the width
  for (int64_t i = 20; i < shape.window_width; ++i) problem.window_slots.at<int32_t>(1, i) = INT32_MAX;
  for (int64_t i = 0; i < shape.window_width; ++i)
    problem.window_slots.at<int32_t>(2, i) = i % 2 == 0 ? slots : INT32_MIN;
  problem.positions.at<int64_t>(3) = (int64_t{1} << 32) + 3;  // row 3 of the table, were it cut to 32 bits
  problem.positions.at<int64_t>(4) = -1;
  problem.positions.at<int64_t>(5) = DecodeProblem::kPositions;
  problem.positions.at<int64_t>(6) = INT64_MIN;
  problem.window_lens.at<int32_t>(6) = 0;
  OutputPair pair(shape.tokens, shape.heads, 8);
  Params p = problem.params;
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = pair.data;
  p.out_scale = pair.scale;
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
  expect_ok(run(p));
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const bool empty = t == 0 || t == 2 || t == 6;
    const bool outside = t >= 3 && t <= 5;
    for (int64_t h = 0; h < shape.heads; ++h) {
      const float lse = problem.lse.at<float>(t, h);
      EXPECT_TRUE(empty ? lse == kInfinity : outside ? std::isnan(lse) : std::isfinite(lse)) << t << " " << lse;
      bool zeros = true;
      for (int64_t d = 0; d < 512; ++d) {
        zeros &= pair.value(t, h, d) == 0 && pair.scale_byte(t, h, d) == format::kZeroGroupScale;
      }
      EXPECT_EQ(zeros, empty || outside) << "token " << t << " head " << h;
    }
  }
}

TEST_P(DecodeAttentionOn, Sinks) {
  DecodeProblem problem(DecodeShape{});
  Params p = problem.params;
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
  p.attn_sink = {};
  expect_ok(run(p));
  const auto without = problem.o.values<float>();
  const auto lse = problem.lse.values<float>();
  problem.sink.fill(-kInfinity);
  problem.sink.at<float>(1) = kInfinity;
  problem.sink.at<float>(2) = 0.5F;
  expect_ok(run(problem.params));
  EXPECT_EQ(problem.lse.values<float>(), lse);  // the sink is no part of it
  for (int64_t h = 0; h < problem.shape.heads; ++h) {
    const double share = h == 1 ? 0 : h == 2 ? 1 / (1 + std::exp(0.5 - lse[static_cast<size_t>(h)])) : 1;
    for (int64_t d = 0; d < 512; ++d) {
      const float expected = static_cast<float>(without[static_cast<size_t>(h * 512 + d)] * share);
      EXPECT_NEAR(problem.o.at<float>(0, h, d), expected, h == 2 ? 1e-6 * (1 + std::fabs(expected)) : 0);
    }
  }
}

TEST_P(DecodeAttentionOn, LiveHeadsAloneAreWritten) {
  DecodeProblem problem(DecodeShape{});
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_ok(run(problem.params));
  const auto all = problem.o.values<float>();
  // A product of fewer rows may sum in another order, a GPU may have another kernel for fewer heads.
  const double tolerance = on_gpu() ? bf16_bound(4).absolute : 1e-6;
  problem.params.live_heads = 8;
  problem.o.fill(7.0F);
  problem.lse.fill(7.0F);
  expect_ok(run(problem.params));
  for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
    const bool live = i / 512 % problem.shape.heads < 8;
    ASSERT_NEAR(problem.o.as<float>()[i], live ? all[static_cast<size_t>(i)] : 7.0F, live ? tolerance : 0);
  }
  EXPECT_EQ(problem.lse.at<float>(0, 8), 7.0F);
}

TEST(DecodeAttention, NoTokens) {
  DecodeShape shape;
  shape.tokens = 0;
  for (const megamla_device device : kDevices) {
    DecodeProblem problem(shape);
    EXPECT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
  }
}

megamla_status call(const Params* p, const megamla_exec* exec) {
  alignas(256) static uint8_t workspace[32 << 20];
  megamla_exec with_workspace = *exec;
  with_workspace.workspace = workspace;
  with_workspace.workspace_bytes = sizeof(workspace);
  return megamla_decode_attention(p, &with_workspace);
}

TEST(DecodeAttention, BadInput) {
  DecodeShape shape;
  shape.compressed_width = 40;
  shape.gap = 0;
  DecodeProblem problem(shape);
  OutputPair pair(shape.tokens, shape.heads, 8);
  Params good = problem.params;
  good.output = MEGAMLA_OUTPUT_FP8_PAIR;
  good.out = pair.data;
  good.out_scale = pair.scale;
  BadInput<Params> bad("decode_attention", call, good, {&pair.data, &pair.scale_memory, &problem.lse});
  bad.tensor("q", &Params::q, true, 2);
  bad.tensor("positions", &Params::positions, true, 1);
  bad.tensor("cos_sin", &Params::cos_sin, false, 1);
  bad.tensor("window_slots", &Params::window_slots, true, 1);
  bad.tensor("window_lens", &Params::window_lens, false, 1);
  bad.tensor("compressed_slots", &Params::compressed_slots, true, 1);
  bad.tensor("compressed_lens", &Params::compressed_lens, false, 1);
  bad.tensor("attn_sink", &Params::attn_sink, false, 1);
  bad.tensor("lse", &Params::lse, false, 2);
  bad.cache("window", &Params::window);
  bad.output("lse", &Params::lse, {&Params::cos_sin});
  bad.expect("out", "out over q", [](Params& p) { p.out.data = p.q.data; });
  bad.expect("out", "out over the window cache", [](Params& p) { p.out.data = p.window.data; });
  bad.expect("out", "out with gaps", [](Params& p) { p.out.stride[0] += 4096; });
  bad.expect("out_scale", "17 scale columns", [](Params& p) { p.out_scale.stride[2] = 17; });
  bad.expect("out_scale", "scales of another stride", [](Params& p) { p.out_scale.stride[1] += 4; });
  bad.expect("out_scale", "no scales", [](Params& p) { p.out_scale = {}; });
  bad.expect("q_layout", "q_layout 2", [](Params& p) { p.q_layout = 2; });
  bad.expect("q_norm_eps", "a NaN eps", [](Params& p) { p.q_norm_eps = std::nanf(""); });
  bad.expect("softmax_scale", "an infinite scale", [](Params& p) { p.softmax_scale = kInfinity; });
  bad.expect("live_heads", "12 live heads", [](Params& p) { p.live_heads = 12; });
  bad.expect("live_heads", "24 live heads of 16", [](Params& p) { p.live_heads = 24; });
  bad.expect("output", "output 3", [](Params& p) { p.output = 3; });
  bad.expect("compressed", "fp8_584 beside fp8_528", [](Params& p) {
    p.compressed.format = MEGAMLA_KV_FP8_584;
    p.compressed.page_stride += 1 << 20;
  });
  bad.expect("compressed_slots", "a list without a cache", [](Params& p) { p.compressed = {}; });
}

TEST(DecodeAttention, WorkspaceIsCheckedFirst) {
  DecodeProblem problem(DecodeShape{});
  const megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU);
  const auto before = problem.o.bytes();
  EXPECT_EQ(megamla_decode_attention(&problem.params, &exec), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(problem.o.bytes(), before);
}

}  // namespace
}  // namespace megamla::test
