// A row depends on its batch mates: the same row alone and among 31 others has the same bits in batch-invariant mode,
// wherever it stands.
#include <gtest/gtest.h>

#include <vector>

#include "format/small_float.hpp"
#include "support/decode_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kChosen[] = {0, 13, 31};

class MatesDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(MatesDecode);

TEST_P(MatesDecode, AloneAndAmong31Others) {
  for (const int64_t heads : {8, 64}) {
    for (const int64_t width : {0, 700}) {  // of one part, and of several that are merged
      SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(width) + " compressed keys");
      DecodeProblem problem({.tokens = kRows, .heads = heads, .window_width = 128, .compressed_width = width});
      auto p = problem.params;
      p.batch_invariant = 1;
      MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
      for (int64_t t = 0; t < kRows; t += 3) problem.window_lens.at<int32_t>(t) = static_cast<int32_t>(t);  // unlike
      expect_ok(run(p));
      TensorBuffer o(MEGAMLA_F32, {1, heads, 512});
      TensorBuffer lse(MEGAMLA_F32, {1, heads});
      for (const int64_t t : kChosen) {
        auto alone = p;
        for (megamla_tensor* view : {&alone.q, &alone.positions, &alone.window_slots, &alone.window_lens,
                                     &alone.compressed_slots, &alone.compressed_lens}) {
          if (present(*view)) *view = slice(*view, t, t + 1);
        }
        alone.out = o;
        alone.lse = lse;
        for (const int threads : {1, 2, 7}) {
          expect_ok(run(alone, threads));
          EXPECT_TRUE(same_bytes(o.as<float>(), &problem.o.at<float>(t, 0, 0), heads * 512 * 4)) << "row " << t;
          EXPECT_TRUE(same_bytes(lse.as<float>(), &problem.lse.at<float>(t, 0), heads * 4)) << "row " << t;
        }
      }
    }
  }
}

class MatesPrefill : public EveryImplementation<megamla_prefill_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(MatesPrefill);

TEST_P(MatesPrefill, AloneAndAmong31Others) {
  if (on_gpu()) GTEST_SKIP() << "prefill_attention has no batch-invariant mode: reference and cpu keep it all the same";
  PrefillProblem problem(kRows, 16, 640, 300, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_ok(run(problem.params));
  TensorBuffer o(MEGAMLA_F32, {1, 16, 512});
  for (const int64_t t : kChosen) {
    auto alone = problem.params;
    for (megamla_tensor* view :
         {&alone.q, &alone.positions, &alone.indices, &alone.topk_length, &alone.lse, &alone.max_logits}) {
      *view = slice(*view, t, t + 1);
    }
    alone.out = o;
    expect_ok(run(alone));
    EXPECT_TRUE(same_bytes(o.as<float>(), &problem.o.at<float>(t, 0, 0), 16 * 512 * 4)) << "row " << t;
  }
}

// Widths of the real layer's projections; 1 to 300 rows, each batch compared with its rows among all others. `run`
// takes parameters.
struct MatesOfALinear {
  static constexpr int64_t kMost = 300;
  static constexpr int64_t kOut = 96;  // a whole panel and a part of one
  TensorBuffer x, weight, scale, y, all;
  megamla_block_scaled_linear_params params;

  explicit MatesOfALinear(int64_t in)
      : x(MEGAMLA_BF16, {kMost, in}),
        weight(MEGAMLA_F8_E4M3, {kOut, in}),
        scale(MEGAMLA_F8_E8M0, {kOut / 32, in / 32}),
        y(MEGAMLA_F32, {kMost, kOut}),
        all(MEGAMLA_F32, {kMost, kOut}) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kMost * in; ++i) x.as<format::Bf16>()[i] = format::to_bf16(normal(random));
    for (int64_t i = 0; i < kOut * in; ++i) weight.as<uint8_t>()[i] = format::float_to_e4m3(normal(random));
    for (int64_t i = 0; i < kOut / 32 * in / 32; ++i) scale.as<uint8_t>()[i] = static_cast<uint8_t>(125 + random() % 4);
    megamla_block_scaled_linear_init(&params);
    params.batch_invariant = 1;
    params.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
    params.output = MEGAMLA_LINEAR_OUT_F32;
    params.x = x;
    params.weight = weight;
    params.weight_scale = scale;
    params.y = all;
  }

  template <class Run>
  void expect_same_bits_alone(Run&& run) const {
    expect_ok(run(params));
    for (const int64_t begin : {0, 270}) {
      for (const int64_t count : {1, 2, 3, 8, 15, 16, 17, 30}) {
        auto p = params;
        p.x = slice(x, begin, begin + count);
        p.y = slice(y, begin, begin + count);
        expect_ok(run(p));
        EXPECT_TRUE(same_bytes(&y.at<float>(begin, 0), &all.at<float>(begin, 0), count * kOut * 4))
            << count << " rows from " << begin;
      }
    }
  }
};
constexpr int64_t kFeatures[] = {1280, 4096, 5120};

class MatesLinear : public EveryImplementation<megamla_block_scaled_linear_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(MatesLinear);

TEST_P(MatesLinear, AloneAndAmongOthers) {
  for (const int64_t in : kFeatures) {
    SCOPED_TRACE(std::to_string(in) + " features");
    const MatesOfALinear problem(in);
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    problem.expect_same_bits_alone([&](const auto& p) { return run(p); });
  }
}

// The dispatcher may not take one implementation for few rows and another for many.
TEST(MatesOfAnyImplementation, AloneAndAmongOthers) {
  const auto& op = ops::op_of(static_cast<const megamla_block_scaled_linear_params*>(nullptr));
  for (const megamla_device device : kDevices) {
    SCOPED_TRACE(device_name(device));
    for (const int64_t in : kFeatures) {
      const MatesOfALinear problem(in);
      problem.expect_same_bits_alone([&](const megamla_block_scaled_linear_params& p) {
        const ops::Implementation<megamla_block_scaled_linear_params>* chosen = nullptr;
        Status status = ops::choose(op, p, device, &chosen);
        return status.ok() ? run_implementation(*chosen, p) : status;
      });
    }
  }
}

}  // namespace
}  // namespace megamla::test
