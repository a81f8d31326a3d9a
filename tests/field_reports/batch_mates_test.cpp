// A row depends on its batch mates: the same row alone and among 31 others has the same bits in batch-invariant mode,
// wherever it stands.
#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace megamla::test
