// decode_attention on a GPU against the double-precision reference: cache pairs, head counts, ragged lists with holes
// and wild slots, layouts, outputs, rows that share an SM or are shared by a cluster; random shapes; graphs. Skipped
// without a GPU.
#include <fmt/format.h>

#include <array>

#include "format/page.hpp"
#include "support/gpu_attention.hpp"

namespace megamla::test {
namespace {

constexpr auto kFp8 = MEGAMLA_KV_FP8_528;
constexpr auto kNvfp4 = MEGAMLA_KV_NVFP4_288;
constexpr auto kV4 = MEGAMLA_KV_FP8_584;

struct Shape {
  int64_t tokens, heads, window_width, compressed_width;
  megamla_kv_format window, compressed;
  megamla_attention_output output = MEGAMLA_OUTPUT_FP8_PAIR;
  int64_t page = 64;
  int64_t live_heads = 0;
  bool interleaved = false, chunked = true, q_norm = false, rotate = true, invariant = false;
};

class DecodeProblem final : public GpuAttention<api::DecodeAttention, megamla_decode_attention_params> {
 public:
  DecodeProblem(const Shape& shape, uint64_t seed)
      : GpuAttention(
            {shape.tokens, shape.heads, shape.output, shape.live_heads, shape.chunked, shape.q_norm, shape.rotate},
            seed),
        shape_(shape) {
    p_.window = cache(shape.window);
    lists(p_.window_slots, p_.window_lens, shape.window_width, p_.window);
    if (shape.compressed != MEGAMLA_KV_NONE) {
      p_.compressed = cache(shape.compressed);
      lists(p_.compressed_slots, p_.compressed_lens, shape.compressed_width, p_.compressed);
    }
    p_.batch_invariant = shape.invariant;
  }

  // A step of `used` rows; the others are what it left behind.
  void next_step(int64_t used) {
    change_query();
    fill_lists(p_.window_slots, p_.window_lens, p_.window);
    if (shape_.compressed != MEGAMLA_KV_NONE) fill_lists(p_.compressed_slots, p_.compressed_lens, p_.compressed);
    for (int64_t row = used; row < shape_.tokens; ++row) {
      make_stale(row, p_.window_lens, p_.window_slots);
      if (shape_.compressed != MEGAMLA_KV_NONE) make_stale(row, p_.compressed_lens, p_.compressed_slots);
    }
  }

 private:
  std::vector<megamla_tensor*> rows_of(megamla_decode_attention_params& p) const override {
    return {&p.q,   &p.positions, &p.window_slots, &p.window_lens, &p.compressed_slots, &p.compressed_lens,
            &p.out, &p.out_scale, &p.lse};
  }

  // Records of modest scales; every fifth slot is NaN and named by no list.
  megamla_kv_cache cache(megamla_kv_format kind) {
    constexpr int64_t kPages = 40;
    const auto layout = shape_.interleaved ? MEGAMLA_PAGE_INTERLEAVED : MEGAMLA_PAGE_PLANAR;
    megamla_kv_cache c = describe_cache({kind, layout}, nullptr, kPages, shape_.page, 64);
    c.data = arena_.bytes(kPages * c.page_stride, 0xff);
    std::vector<float> x(512);
    for (int64_t slot = 0; slot < format::num_slots(c); ++slot) {
      if (slot % 5 == 0) continue;
      for (float& v : x) v = normal_(random_);
      const auto at = format::slot_bytes(c, slot);
      format::encode_row(kind, x.data(), at.data, at.scale);
      for (const float v : x) largest_ = std::max(largest_, std::fabs(v));
    }
    c.cuda_device = arena_.cuda_device();
    return c;
  }
  void lists(megamla_tensor& slots, megamla_tensor& lens, int64_t width, const megamla_kv_cache& c) {
    slots = tensor(MEGAMLA_I32, {shape_.tokens, width});
    lens = tensor(MEGAMLA_I32, {shape_.tokens});
    fill_lists(slots, lens, c);
  }
  void fill_lists(const megamla_tensor& slots, const megamla_tensor& lens, const megamla_kv_cache& c) {
    const int64_t count = format::num_slots(c);
    fill<int32_t>(slots, [&] {
      if (any(0, 8) == 0) return static_cast<int32_t>(any(0, 1) == 0 ? -any(1, 9) : count + any(0, 1000000));
      return static_cast<int32_t>(any(0, count / 5 - 1) * 5 + any(1, 4));
    });
    fill_lengths(lens, slots, 0);  // slot 0 is NaN
  }

  Shape shape_;
};

TEST_F(CudaOps, DecodeAttention) {
  const Shape shapes[] = {
      {1, 64, 128, 512, kFp8, kNvfp4},
      {1, 64, 128, 512, kFp8, kNvfp4, MEGAMLA_OUTPUT_F32},
      {3, 64, 128, 512, kFp8, kNvfp4},
      {5, 16, 133, 500, kFp8, kNvfp4, MEGAMLA_OUTPUT_FP8_PAIR, 53, 0, true, false, true},
      {20, 8, 128, 133, kFp8, kFp8, MEGAMLA_OUTPUT_BF16, 2},
      {40, 32, 256, 64, kV4, kV4, MEGAMLA_OUTPUT_FP8_PAIR, 61, 24, false, false},
      {4, 128, 128, 100, kV4, kV4, MEGAMLA_OUTPUT_FP8_PAIR, 69, 72, false, true, false, true, true},
      {140, 64, 128, 70, kFp8, kNvfp4, MEGAMLA_OUTPUT_FP8_PAIR, 64, 0, true},
      {7, 64, 130, 0, kFp8, MEGAMLA_KV_NONE, MEGAMLA_OUTPUT_BF16, 32, 0, false, true, false, false},
      {2, 128, 1, 1, kV4, kV4, MEGAMLA_OUTPUT_F32, 7, 0, false, true, true},
      {300, 8, 40, 30, kV4, kV4, MEGAMLA_OUTPUT_FP8_PAIR, 64, 0, false, false},
      {70, 128, 128, 128, kFp8, kNvfp4, MEGAMLA_OUTPUT_BF16, 64, 0, false, true, true, true, true},
      {1, 8, 0, 3, kFp8, kFp8, MEGAMLA_OUTPUT_FP8_PAIR, 5, 0, true},
      {0, 64, 128, 512, kFp8, kNvfp4},
      {33, 24, 64, 1152, kFp8, kNvfp4, MEGAMLA_OUTPUT_BF16},
      {2, 16, 128, 512, kFp8, kNvfp4},
      {9, 16, 131, 200, kFp8, kFp8, MEGAMLA_OUTPUT_F32, 64, 0, true, false, true},
      {3, 16, 128, 300, kV4, kV4, MEGAMLA_OUTPUT_BF16, 64, 8, false, true, false, true, true},
      {150, 16, 96, 70, kFp8, kNvfp4, MEGAMLA_OUTPUT_FP8_PAIR, 53},
      {70, 64, 64, 200, kFp8, kFp8, MEGAMLA_OUTPUT_F32},
      {29, 128, 60, 400, kFp8, kNvfp4, MEGAMLA_OUTPUT_F32, 64, 0, false, true, false, true, true},
  };
  for (size_t i = 0; i < std::size(shapes); ++i) {
    SCOPED_TRACE("shape " + std::to_string(i));
    DecodeProblem problem(shapes[i], 100 + i);
    ASSERT_NO_FATAL_FAILURE(problem.run());
    problem.expect_close_to_reference();
  }
}

TEST_F(CudaOps, DecodeAttentionOfRandomShapes) {
  const megamla_kv_format pairs[][2] = {{kFp8, kNvfp4}, {kFp8, kFp8}, {kV4, kV4}, {kFp8, MEGAMLA_KV_NONE}};
  for (int round = 0; round < sweep_rounds(); ++round) {
    const auto [window, compressed] = pairs[round % 4];
    Shape s{any(1, any(0, 9) == 0 ? 300 : 20),   8 * any(1, 16), any(0, 200),
            any(1, any(0, 4) == 0 ? 1300 : 300), window,         compressed};
    s.output = std::array{MEGAMLA_OUTPUT_FP8_PAIR, MEGAMLA_OUTPUT_BF16, MEGAMLA_OUTPUT_F32}[any(0, 2)];
    s.page = any(5, 130);
    s.live_heads = any(0, 3) == 0 ? 8 * any(1, s.heads / 8) : 0;
    s.interleaved = s.window == kFp8 && any(0, 1) == 0;
    s.chunked = any(0, 1) == 0;
    s.q_norm = any(0, 3) == 0;
    s.rotate = any(0, 3) != 0;
    s.invariant = any(0, 3) == 0;
    SCOPED_TRACE(fmt::format("round {}: T {} H {} ({} live) W {} K {} formats {} {} output {} page {} {}{}{}{}{}",
                             round, s.tokens, s.heads, s.live_heads, s.window_width, s.compressed_width,
                             static_cast<int>(s.window), static_cast<int>(s.compressed), static_cast<int>(s.output),
                             s.page, s.interleaved ? "interleaved " : "", s.chunked ? "chunked " : "",
                             s.q_norm ? "norm " : "", s.rotate ? "rotated " : "", s.invariant ? "invariant" : ""));
    DecodeProblem problem(s, static_cast<uint64_t>(1000 + round));
    ASSERT_NO_FATAL_FAILURE(problem.run(2));
    problem.expect_close_to_reference(s.tokens > 20 ? 17 : 1);
    if (HasFailure()) return;
  }
}

// Rows that a replay does not need keep stale slots and positions; their results are zeros.
TEST_F(CudaOps, DecodeAttentionInAGraph) {
  for (const Shape& shape :
       {Shape{8, 64, 128, 300, kFp8, kNvfp4}, Shape{8, 16, 128, 300, kV4, kV4}, Shape{70, 64, 64, 250, kFp8, kNvfp4},
        Shape{5, 8, 64, 0, kFp8, MEGAMLA_KV_NONE, MEGAMLA_OUTPUT_BF16}}) {
    SCOPED_TRACE(shape.heads);
    DecodeProblem problem(shape, 11);
    int64_t used = shape.tokens;
    ASSERT_NO_FATAL_FAILURE(problem.replay(4, [&] { problem.next_step(used = used == 1 ? shape.tokens : used / 2); }));
  }
}

// Two keys decide a row, in tiles of their own: what rounds their probabilities does not average out.
TEST_F(CudaOps, DecodeAttentionOfTwoKeys) {
  for (const int64_t heads : {128, 16}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(fmt::format("heads {} seed {}", heads, seed));
      DecodeProblem problem({2, heads, 1, 1, kV4, kV4, MEGAMLA_OUTPUT_F32}, seed);
      ASSERT_NO_FATAL_FAILURE(problem.run(1));
      problem.expect_close_to_reference();
    }
  }
}

TEST_F(CudaOps, DecodeAttentionOfManyTokens) {
  for (const int64_t tokens : {65536, 131072}) {
    SCOPED_TRACE(tokens);
    DecodeProblem problem({tokens, 8, 2, 1, kFp8, kNvfp4}, 7);
    ASSERT_NO_FATAL_FAILURE(problem.run(2));
    problem.expect_close_to_reference(4099);
  }
}

// In batch-invariant mode a row's bits do not depend on its company.
TEST_F(CudaOps, DecodeAttentionAloneAndInCompany) {
  for (const int64_t heads : {128, 64, 8}) {
    SCOPED_TRACE(heads);
    Shape shape{32, heads, 128, 300, kFp8, kNvfp4};  // three segments, or shares, a row
    shape.invariant = true;
    DecodeProblem all(shape, 3);
    ASSERT_NO_FATAL_FAILURE(all.run());
    for (const int64_t row : {2, 17, 31}) {
      DecodeProblem alone(shape, 3);
      alone.keep_rows(row, row + 1);
      ASSERT_NO_FATAL_FAILURE(alone.run());
      EXPECT_EQ(alone.out(), all.row_bytes(row)) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace megamla::test
