// prefill_attention on a GPU against the double-precision reference: head counts, ragged lists with holes and wild
// indices, NaN in rows that no list names, layouts, outputs between guard rows; random shapes; graphs. Skipped without
// a GPU.
#include <fmt/format.h>

#include <array>

#include "support/gpu_attention.hpp"

namespace megamla::test {
namespace {

struct Shape {
  int64_t tokens, heads, topk, rows;
  megamla_attention_output output = MEGAMLA_OUTPUT_FP8_PAIR;
  int64_t live_heads = 0;
  bool chunked = true, q_norm = false, rotate = true, lengths = true;
  float softmax_scale = 0.0442F;  // 1: logits so large that the running maximum moves from tile to tile
};

class PrefillProblem final : public GpuAttention<api::PrefillAttention, megamla_prefill_attention_params> {
 public:
  PrefillProblem(const Shape& shape, uint64_t seed)
      : GpuAttention(
            {shape.tokens, shape.heads, shape.output, shape.live_heads, shape.chunked, shape.q_norm, shape.rotate},
            seed) {
    p_.softmax_scale = shape.softmax_scale;
    // Every fifth row is NaN and named by no list before its end.
    p_.kv = tensor(MEGAMLA_BF16, {shape.rows, 512}, 24);
    fill<uint16_t>(p_.kv, [] { return uint16_t{0x7fff}; });
    for (int64_t row = 0; row < shape.rows; ++row) {
      if (row % 5 == 0) continue;
      for (int64_t d = 0; d < 512; ++d) {
        const float x = normal_(random_);
        largest_ = std::max(largest_, std::fabs(x));
        at<format::Bf16>(p_.kv, row, d) = format::to_bf16(x);
      }
    }
    p_.indices = tensor(MEGAMLA_I32, {shape.tokens, shape.topk}, 1);
    fill<int32_t>(p_.indices, [&] { return index(); });
    for (int64_t i = 0; shape.tokens > 3 && i < shape.topk; ++i) at<int32_t>(p_.indices, 3, i) = -1;
    if (!shape.lengths) return;
    p_.topk_length = tensor(MEGAMLA_I32, {shape.tokens});
    fill_lengths(p_.topk_length, p_.indices, 0);
  }

  // A step of `used` rows; the others are what it left behind.
  void next_step(int64_t used) {
    change_query();
    fill<int32_t>(p_.indices, [&] { return index(); });
    fill_lengths(p_.topk_length, p_.indices, 0);
    for (int64_t row = used; row < p_.q.shape[0]; ++row) make_stale(row, p_.topk_length, p_.indices);
  }

  // Without a row the list's indices are all out of range.
  void take_rows_away() {
    p_.kv.shape[0] = 0;
    p_.kv.data = nullptr;
  }

 private:
  int32_t index() {
    const int64_t rows = p_.kv.shape[0];
    if (any(0, 8) == 0) return static_cast<int32_t>(any(0, 1) == 0 ? -any(1, 9) : rows + any(0, 1 << 30));
    return static_cast<int32_t>(any(0, rows / 5 - 1) * 5 + any(1, 4));
  }
  std::vector<megamla_tensor*> rows_of(megamla_prefill_attention_params& p) const override {
    return {&p.q, &p.positions, &p.indices, &p.topk_length, &p.out, &p.out_scale, &p.lse, &p.max_logits};
  }
};

TEST_F(CudaOps, PrefillAttention) {
  const Shape shapes[] = {
      {1, 64, 640, 3000},
      {5, 64, 640, 3000, MEGAMLA_OUTPUT_F32},
      {9, 8, 133, 100, MEGAMLA_OUTPUT_BF16},
      {7, 16, 129, 500, MEGAMLA_OUTPUT_FP8_PAIR, 0, false, true},
      {3, 16, 200, 300, MEGAMLA_OUTPUT_F32, 8},
      {6, 32, 64, 200, MEGAMLA_OUTPUT_FP8_PAIR, 24, false, false, false},
      {4, 128, 200, 300, MEGAMLA_OUTPUT_FP8_PAIR, 72, true, true},
      {5, 128, 65, 300, MEGAMLA_OUTPUT_BF16},
      {6, 40, 63, 90, MEGAMLA_OUTPUT_F32, 0, true, false, true, false},
      {6, 64, 500, 900, MEGAMLA_OUTPUT_FP8_PAIR, 0, true, false, true, true, 1},
      {6, 16, 500, 900, MEGAMLA_OUTPUT_BF16, 0, true, false, true, true, 1},
      {5, 8, 300, 900, MEGAMLA_OUTPUT_F32, 0, true, false, true, true, -1},
      {300, 8, 3, 60},
      {270, 64, 70, 900},
      {2, 64, 1, 5},
      {5, 24, 0, 5, MEGAMLA_OUTPUT_BF16},
      {0, 64, 640, 5},
  };
  for (size_t i = 0; i < std::size(shapes); ++i) {
    SCOPED_TRACE("shape " + std::to_string(i));
    PrefillProblem problem(shapes[i], 300 + i);
    ASSERT_NO_FATAL_FAILURE(problem.run());
    problem.expect_close_to_reference();
  }
}

TEST_F(CudaOps, PrefillAttentionOfRandomShapes) {
  for (int round = 0; round < sweep_rounds(); ++round) {
    Shape s{any(1, any(0, 9) == 0 ? 300 : 20), 8 * any(1, 16), any(1, any(0, 4) == 0 ? 1300 : 300), any(5, 3000)};
    s.output = std::array{MEGAMLA_OUTPUT_FP8_PAIR, MEGAMLA_OUTPUT_BF16, MEGAMLA_OUTPUT_F32}[any(0, 2)];
    s.live_heads = any(0, 3) == 0 ? 8 * any(1, s.heads / 8) : 0;
    s.chunked = any(0, 1) == 0;
    s.q_norm = any(0, 3) == 0;
    s.rotate = any(0, 3) != 0;
    s.lengths = any(0, 3) != 0;
    SCOPED_TRACE(fmt::format("round {}: T {} H {} ({} live) keys {} rows {} output {} {}{}{}{}", round, s.tokens,
                             s.heads, s.live_heads, s.topk, s.rows, static_cast<int>(s.output),
                             s.chunked ? "chunked " : "", s.q_norm ? "norm " : "", s.rotate ? "rotated " : "",
                             s.lengths ? "lengths" : ""));
    PrefillProblem problem(s, static_cast<uint64_t>(2000 + round));
    ASSERT_NO_FATAL_FAILURE(problem.run(2));
    problem.expect_close_to_reference(s.tokens > 20 ? 17 : 1);
    if (HasFailure()) return;
  }
}

TEST_F(CudaOps, PrefillAttentionInAGraph) {
  for (const int64_t heads : {64, 16}) {
    SCOPED_TRACE(heads);
    PrefillProblem problem({8, heads, 300, 900}, 11);
    int64_t used = 8;
    ASSERT_NO_FATAL_FAILURE(problem.replay(4, [&] { problem.next_step(used = used == 1 ? 8 : used / 2); }));
  }
}

TEST_F(CudaOps, PrefillAttentionWithoutRows) {
  PrefillProblem problem({5, 16, 70, 10}, 1);
  problem.take_rows_away();
  ASSERT_NO_FATAL_FAILURE(problem.run());
  problem.expect_close_to_reference();
}

TEST_F(CudaOps, PrefillAttentionOfManyTokens) {
  for (const int64_t tokens : {65536, 131072}) {
    SCOPED_TRACE(tokens);
    PrefillProblem problem({tokens, 8, 3, 1000}, 7);
    ASSERT_NO_FATAL_FAILURE(problem.run(2));
    problem.expect_close_to_reference(4099);
  }
}

// A row's bits do not depend on its company.
TEST_F(CudaOps, PrefillAttentionAloneAndInCompany) {
  const Shape shape{140, 64, 300, 2000};
  PrefillProblem all(shape, 3);
  ASSERT_NO_FATAL_FAILURE(all.run());
  for (const int64_t row : {2, 17, 139}) {
    PrefillProblem alone(shape, 3);
    alone.keep_rows(row, row + 1);
    ASSERT_NO_FATAL_FAILURE(alone.run());
    EXPECT_EQ(alone.out(), all.row_bytes(row)) << "row " << row;
  }
}

}  // namespace
}  // namespace megamla::test
