// Sink and lse for context parallelism: two ranks hold parts of the keys; their results, merged by lse, are the
// whole's. lse excludes the sink, is to base e, and +inf where a rank has no key.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/decode_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

using Params = megamla_decode_attention_params;

struct Partial {
  std::vector<float> o, lse;
};

// Weight of a part in the whole whose lse is given: the whole's sum has all keys, so the lses say it all.
double weight(float lse, double whole) { return std::isinf(lse) ? 0 : std::exp(static_cast<double>(lse) - whole); }
double merged_lse(float a, float b) {
  double sum = 0;
  for (const float lse : {a, b}) sum += std::isinf(lse) ? 0 : std::exp(static_cast<double>(lse));
  return std::log(sum);
}

// Rows of 512 values of `heads` heads: the parts of two ranks, merged, are the whole with its sink. `tolerance`: two
// roundings of probabilities to bf16 on values of up to 4; none in the reference.
void expect_merged(const Partial& whole, const Partial& first, const Partial& second, const TensorBuffer& sink,
                   double tolerance) {
  const auto heads = static_cast<size_t>(sink.view().shape[0]);
  for (size_t row = 0; row < whole.lse.size(); ++row) {
    const double lse = merged_lse(first.lse[row], second.lse[row]);
    ASSERT_NEAR(lse, whole.lse[row], 1e-5 * (1 + std::fabs(lse)) + 1e-4) << "row " << row;
    const double share = 1 / (1 + std::exp(sink.at<float>(static_cast<int64_t>(row % heads)) - lse));
    for (size_t i = row * 512; i < (row + 1) * 512; ++i) {
      const double merged =
          share * (first.o[i] * weight(first.lse[row], lse) + second.o[i] * weight(second.lse[row], lse));
      ASSERT_NEAR(merged, whole.o[i], tolerance) << i;
    }
  }
}

constexpr double tolerance_on(megamla_device device) { return device == MEGAMLA_DEVICE_REFERENCE ? 1e-5 : 8e-3; }

class ContextParallel : public EveryImplementation<Params> {
 protected:
  Partial part(const DecodeProblem& problem, const Params& p) {
    expect_ok(run(p));
    return {problem.o.values<float>(), problem.lse.values<float>()};
  }
  // Keys at list positions of the other parity are taken out of both lists.
  Partial rank(DecodeProblem& problem, Params p, int64_t parity) {
    const auto window = problem.window_slots.values<int32_t>();
    const auto compressed = problem.compressed_slots.values<int32_t>();
    for (TensorBuffer* slots : {&problem.window_slots, &problem.compressed_slots}) {
      for (int64_t t = 0; t < problem.shape.tokens; ++t) {
        for (int64_t i = 1 - parity; i < slots->view().shape[1]; i += 2) slots->at<int32_t>(t, i) = -1;
      }
    }
    p.attn_sink = {};
    Partial result = part(problem, p);
    problem.window_slots.assign(window);
    problem.compressed_slots.assign(compressed);
    return result;
  }
};
MEGAMLA_EVERY_IMPLEMENTATION(ContextParallel);

TEST_P(ContextParallel, TwoRanksMergeIntoTheWhole) {
  for (const int64_t heads : {8, 64}) {
    DecodeProblem problem({.tokens = 4, .heads = heads, .window_width = 64, .compressed_width = 300});
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    const Partial whole = part(problem, problem.params);  // with the sink
    const Partial first = rank(problem, problem.params, 0);
    const Partial second = rank(problem, problem.params, 1);
    expect_merged(whole, first, second, problem.sink, tolerance_on(device()));
  }
}

TEST_P(ContextParallel, ARankWithoutKeysHasInfiniteLseAndZeros) {
  DecodeProblem problem({.tokens = 3, .heads = 8, .window_width = 20, .compressed_width = 40});
  Params p = problem.params;
  p.attn_sink = {};
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
  problem.window_lens.fill<int32_t>(0);
  problem.compressed_lens.fill<int32_t>(0);
  for (const bool sink : {false, true}) {
    if (sink) p.attn_sink = problem.params.attn_sink;
    const Partial empty = part(problem, p);
    for (const float lse : empty.lse) EXPECT_EQ(lse, std::numeric_limits<float>::infinity());
    for (const float o : empty.o) ASSERT_EQ(o, 0.0F);
  }
}

// One key: lse is its logit, in natural units, whatever the sink.
TEST_P(ContextParallel, LseIsNaturalAndWithoutTheSink) {
  DecodeProblem problem({.tokens = 1, .heads = 8, .window_width = 1});
  Params p = problem.params;
  p.cos_sin = {};
  p.positions = {};
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
  problem.window_lens.fill<int32_t>(1);
  problem.window_slots.fill<int32_t>(0);
  problem.write_record(problem.window, 0);
  problem.sink.fill(30.0F);
  expect_ok(run(p));
  float key[512];
  const auto record = format::slot_bytes(problem.window.view(), 0);
  format::decode_row(problem.shape.window.format, record.data, record.scale, key);
  for (int64_t h = 0; h < 8; ++h) {
    double logit = 0;
    for (int64_t d = 0; d < 512; ++d)
      logit += static_cast<double>(format::to_float(problem.q.at<format::Bf16>(0, h, d))) * key[d];
    logit *= p.softmax_scale;
    EXPECT_NEAR(problem.lse.at<float>(0, h), logit, 1e-4 * (1 + std::fabs(logit)));
  }
}

class ContextParallelPrefill : public EveryImplementation<megamla_prefill_attention_params> {
 protected:
  Partial part(const PrefillProblem& problem, const megamla_prefill_attention_params& p) {
    expect_ok(run(p));
    Partial part{{}, problem.lse.values<float>()};
    for (int64_t t = 0; t < problem.tokens; ++t)
      part.o.insert(part.o.end(), &problem.o.at<float>(t, 0, 0), &problem.o.at<float>(t, 0, 0) + problem.heads * 512);
    return part;
  }
  // Rows of the other parity of the list are another rank's.
  Partial rank(PrefillProblem& problem, megamla_prefill_attention_params p, int64_t parity) {
    const auto indices = problem.indices.values<int32_t>();
    for (int64_t t = 0; t < problem.tokens; ++t) {
      for (int64_t i = 1 - parity; i < problem.topk; i += 2) problem.indices.at<int32_t>(t, i) = -1;
    }
    p.attn_sink = {};
    Partial result = part(problem, p);
    problem.indices.assign(indices);
    return result;
  }
};
MEGAMLA_EVERY_IMPLEMENTATION(ContextParallelPrefill);

TEST_P(ContextParallelPrefill, TwoRanksMergeIntoTheWhole) {
  for (const int64_t heads : {8, 64}) {
    PrefillProblem problem(4, heads, 360, 500, false, 1);
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    problem.lengths.at<int32_t>(1) = 1;  // all keys on one rank
    const Partial whole = part(problem, problem.params);
    const Partial first = rank(problem, problem.params, 0);
    const Partial second = rank(problem, problem.params, 1);
    expect_merged(whole, first, second, problem.sink, tolerance_on(device()));
  }
}

}  // namespace
}  // namespace megamla::test
