// decode_attention on a GPU against the double-precision reference: cache pairs, head counts, ragged lists with holes
// and wild slots, layouts, outputs, rows that share an SM or are shared by a cluster. Skipped without a GPU.
#include "format/page.hpp"
#include "support/attention_bounds.hpp"
#include "support/gpu_problem.hpp"

namespace megamla::test {
namespace {

constexpr auto kFp8 = MEGAMLA_KV_FP8_528;
constexpr auto kNvfp4 = MEGAMLA_KV_NVFP4_288;
constexpr auto kV4 = MEGAMLA_KV_FP8_584;
constexpr int64_t kPositions = 100;
constexpr int64_t kDrawn = 1 << 22;

struct Shape {
  int64_t tokens, heads, window_width, compressed_width;
  megamla_kv_format window, compressed;
  megamla_attention_output output = MEGAMLA_OUTPUT_FP8_PAIR;
  int64_t page = 64;
  int64_t live_heads = 0;
  bool interleaved = false, chunked = true, q_norm = false, rotate = true, invariant = false;
};

class DecodeProblem {
 public:
  DecodeProblem(const Shape& shape, uint64_t seed) : shape_(shape), random_(seed) {
    const int64_t tokens = shape.tokens;
    p_.q = tensor(MEGAMLA_BF16, {tokens, shape.heads, 512});
    int64_t drawn = 0;  // millions of values repeat
    fill<uint16_t>(p_.q, [&] {
      const int64_t i = drawn++;
      return i < kDrawn ? format::to_bf16(normal_(random_)).bits : data<uint16_t>(p_.q)[i - kDrawn];
    });
    p_.q_layout = shape.chunked ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
    p_.q_norm = shape.q_norm;
    p_.q_norm_eps = 1e-6F;
    if (shape.rotate) {
      p_.positions = tensor(MEGAMLA_I64, {tokens});
      fill<int64_t>(p_.positions, [&] { return any(0, 20) == 0 ? any(-3, kPositions + 3) : any(0, kPositions - 1); });
      p_.cos_sin = tensor(MEGAMLA_F32, {kPositions, 64});
      fill_table(p_.cos_sin);
    }
    p_.window = cache(shape.window);
    lists(p_.window_slots, p_.window_lens, shape.window_width, p_.window);
    if (shape.compressed != MEGAMLA_KV_NONE) {
      p_.compressed = cache(shape.compressed);
      lists(p_.compressed_slots, p_.compressed_lens, shape.compressed_width, p_.compressed);
    }
    p_.attn_sink = tensor(MEGAMLA_F32, {shape.heads});
    fill<float>(p_.attn_sink, [&] { return normal_(random_); });
    p_.live_heads = static_cast<int32_t>(shape.live_heads);
    p_.batch_invariant = shape.invariant;
    p_.output = shape.output;
    const megamla_dtype dtype = shape.output == MEGAMLA_OUTPUT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F32;
    if (shape.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      const int64_t columns = format::round_up(tokens, 4);
      p_.out = tensor(MEGAMLA_F8_E4M3, {tokens, shape.heads / 8, 4096});
      p_.out_scale = tensor(MEGAMLA_I32, {shape.heads / 8, 32, columns});
      p_.out_scale = host_tensor(p_.out_scale.data, MEGAMLA_I32, {tokens, shape.heads / 8, 32});
      p_.out_scale.stride[0] = 1, p_.out_scale.stride[1] = 32 * columns, p_.out_scale.stride[2] = columns;
      p_.out_scale.cuda_device = arena_.cuda_device();
    } else {
      p_.out = tensor(dtype, {tokens, shape.heads, 512});
    }
    p_.lse = tensor(MEGAMLA_F32, {tokens, shape.heads});
  }

  // Several times: the same bits.
  void run(int repeats = 10) {
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = MEGAMLA_DEVICE_CUDA;
    exec.stream = app::gpu::stream();
    const auto placed = app::placed<megamla_decode_attention_params>(p_, arena_);
    arena_.upload();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const api::Result ran = api::run(placed, exec);
      ASSERT_TRUE(ran) << ran.message();
      arena_.download();
      const std::vector<uint8_t> now = bytes_of(p_.out);
      if (repeat > 0) {
        ASSERT_EQ(now, out_) << "repeat " << repeat;
      }
      out_ = now;
    }
  }

  // Of every step-th row and the last.
  void expect_close_to_reference(int64_t step = 1) {
    const int64_t tokens = p_.q.shape[0];
    const int64_t heads = shape_.live_heads == 0 ? shape_.heads : shape_.live_heads;
    std::vector<float> got;
    std::vector<float> expected;
    std::vector<float> o(static_cast<size_t>(shape_.heads * 512));
    std::vector<float> lse(static_cast<size_t>(shape_.heads));
    for (int64_t t = 0; t < tokens; t = t == tokens - 1 ? tokens : std::min(t + step, tokens - 1)) {
      megamla_decode_attention_params truth = p_;
      for (megamla_tensor* row : rows_of(truth)) {
        if (present(*row)) *row = slice(*row, t, t + 1);
      }
      ops::for_each_view(truth, [](auto& view) { view.cuda_device = -1; });
      truth.output = MEGAMLA_OUTPUT_F32;
      truth.out = host_tensor(o.data(), MEGAMLA_F32, {1, shape_.heads, 512});
      truth.out_scale = {};
      truth.lse = host_tensor(lse.data(), MEGAMLA_F32, {1, shape_.heads});
      const api::Result ran = api::run(truth, api::Exec(MEGAMLA_DEVICE_REFERENCE));
      ASSERT_TRUE(ran) << ran.message();
      expected.insert(expected.end(), o.begin(), o.begin() + heads * 512);
      for (int64_t i = 0; i < heads * 512; ++i) got.push_back(value(t, i / 512, i % 512));
      expect_lse(&at<float>(p_.lse, t, 0), lse.data(), heads);
    }
    const auto bound = shape_.output == MEGAMLA_OUTPUT_FP8_PAIR ? fp8_bound(largest_) : bf16_bound(largest_);
    expect_within(
        bound, static_cast<int64_t>(got.size()), [&](int64_t i) { return got[static_cast<size_t>(i)]; },
        [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
  }

  // What is left of the call when it is about rows begin .. end - 1 alone.
  void keep_rows(int64_t begin, int64_t end) {
    for (megamla_tensor* row : rows_of(p_)) *row = slice(*row, begin, end);
  }
  const std::vector<uint8_t>& out() const { return out_; }
  std::vector<uint8_t> row_bytes(int64_t t) const {
    const auto size = static_cast<int64_t>(out_.size()) / shape_.tokens;
    return {out_.begin() + t * size, out_.begin() + (t + 1) * size};
  }

 private:
  static std::vector<megamla_tensor*> rows_of(megamla_decode_attention_params& p) {
    return {&p.q,   &p.positions, &p.window_slots, &p.window_lens, &p.compressed_slots, &p.compressed_lens,
            &p.out, &p.out_scale, &p.lse};
  }

  int64_t any(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape) {
    megamla_tensor t = host_tensor(nullptr, dtype, shape);
    t.data = arena_.bytes(t.shape[0] * t.stride[0] * megamla_dtype_size(dtype), 0xa5);
    t.cuda_device = arena_.cuda_device();
    return t;
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
    const int64_t count = format::num_slots(c);
    fill<int32_t>(slots, [&] {
      if (any(0, 8) == 0) return static_cast<int32_t>(any(0, 1) == 0 ? -any(1, 9) : count + any(0, 1000000));
      return static_cast<int32_t>(any(0, count / 5 - 1) * 5 + any(1, 4));
    });
    // Beyond the length: slots that are NaN.
    int64_t row = 0;
    fill<int32_t>(lens, [&] {
      const int64_t length = row < 2 && shape_.tokens > 2 ? -row : any(0, 3) == 0 ? any(-10, width + 10) : width;
      for (int64_t i = std::max<int64_t>(length, 0); i < width; ++i) at<int32_t>(slots, row, i) = 0;
      ++row;
      return static_cast<int32_t>(length);
    });
  }
  std::vector<uint8_t> bytes_of(const megamla_tensor& t) const {
    const auto* begin = static_cast<const uint8_t*>(t.data);
    return {begin, begin + t.shape[0] * t.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype))};
  }
  float value(int64_t t, int64_t head, int64_t dim) const {
    if (shape_.output == MEGAMLA_OUTPUT_F32) return at<float>(p_.out, t, head, dim);
    if (shape_.output == MEGAMLA_OUTPUT_BF16) return format::to_float(at<format::Bf16>(p_.out, t, head, dim));
    const format::PackedScale place = format::packed_scale(format::o_chunk(head % 8, dim));
    const uint32_t word = at<uint32_t>(p_.out_scale, t, head / 8, place.word);
    const uint8_t code = at<uint8_t>(p_.out, t, head / 8, format::o_chunked_index(head % 8, dim));
    return format::e4m3_to_float(code) * format::ue8m0_to_float(static_cast<uint8_t>(word >> place.shift));
  }

  Shape shape_;
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  app::Arena arena_{MEGAMLA_DEVICE_CUDA};
  api::DecodeAttention p_;
  float largest_ = 1;
  std::vector<uint8_t> out_;
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
  };
  for (size_t i = 0; i < std::size(shapes); ++i) {
    SCOPED_TRACE("shape " + std::to_string(i));
    DecodeProblem problem(shapes[i], 100 + i);
    ASSERT_NO_FATAL_FAILURE(problem.run());
    problem.expect_close_to_reference();
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
  for (const int64_t heads : {64, 8}) {
    SCOPED_TRACE(heads);
    Shape shape{32, heads, 128, 300, kFp8, kNvfp4};
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
