// Head counts and list widths with no kernel, and small models that pass where the real geometry fails: 8 and 16 heads,
// K a run-time value, 64 heads x 512 dims. Held against the reference.
#include <gtest/gtest.h>

#include "support/decode_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kWidths[] = {1, 133, 192, 256, 512, 1152};

class GeometryDecode : public EveryImplementation<megamla_decode_attention_params> {
 protected:
  void check(const DecodeShape& shape) {
    SCOPED_TRACE(std::to_string(shape.tokens) + " tokens, " + std::to_string(shape.heads) + " heads, window " +
                 std::to_string(shape.window_width) + ", K " + std::to_string(shape.compressed_width));
    DecodeProblem problem(shape, static_cast<uint64_t>(shape.heads + shape.compressed_width));
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    expect_ok(run_reference(problem.params));
    expect_close(problem, [&](const auto& p) { return run(p); });
  }
};
MEGAMLA_EVERY_IMPLEMENTATION(GeometryDecode);

TEST_P(GeometryDecode, FewHeadsAndAnyWidth) {
  for (const int64_t heads : {8, 16}) {
    for (const int64_t width : kWidths) {
      check({.tokens = 2, .heads = heads, .window_width = 128, .compressed_width = width});
    }
  }
}

// The same widths over the other records: tails of a tile are a format's own code.
TEST_P(GeometryDecode, AnyWidthOfEveryRecord) {
  for (const CacheKind kind : kCacheKinds) {
    const bool v4 = kind.format == MEGAMLA_KV_FP8_584;
    for (const int64_t width : {133, 1152}) {
      DecodeShape shape{.tokens = 1, .heads = 8, .window_width = 133, .compressed_width = width};
      shape.compressed = kind;
      if (v4) shape.window = kind;
      check(shape);
    }
  }
}

TEST_P(GeometryDecode, RealModelsAndTheirParallelParts) {
  for (const int64_t heads : {128, 64, 32}) {
    for (const bool chunked : {false, true}) {
      check({.tokens = 3, .heads = heads, .window_width = 128, .compressed_width = 512, .chunked = chunked});
    }
  }
  check({.tokens = 6, .heads = 64, .window_width = 128 + 5, .compressed_width = 512, .chunked = true});  // drafts
}

class GeometryPrefill : public EveryImplementation<megamla_prefill_attention_params> {
 protected:
  void check(int64_t tokens, int64_t heads, int64_t topk) {
    SCOPED_TRACE(std::to_string(heads) + " heads, top-k " + std::to_string(topk));
    PrefillProblem problem(tokens, heads, topk, 600, true, static_cast<uint64_t>(heads + topk));
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    expect_ok(run_reference(problem.params));
    expect_close(problem, [&](const auto& p) { return run(p); });
  }
};
MEGAMLA_EVERY_IMPLEMENTATION(GeometryPrefill);

TEST_P(GeometryPrefill, FewHeadsAndAnyWidth) {
  for (const int64_t heads : {8, 16}) {
    for (const int64_t width : kWidths) {
      if (width >= 3) check(2, heads, width);
    }
  }
}

TEST_P(GeometryPrefill, RealModelsAndTheirParallelParts) {
  for (const int64_t heads : {128, 64, 32}) check(3, heads, 640);
}

}  // namespace
}  // namespace megamla::test
