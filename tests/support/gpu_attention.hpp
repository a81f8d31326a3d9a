// A call of an attention op on a GPU against the double-precision reference: queries, rotation, sinks and outputs with
// guard rows around them; the op's own test adds the keys.
#pragma once

#include <cstdlib>
#include <functional>

#include "ops/op.hpp"
#include "support/attention_bounds.hpp"
#include "support/gpu_problem.hpp"

namespace megamla::test {

// How many random shapes a sweep takes; more where there is time.
inline int sweep_rounds() {
  const char* rounds = std::getenv("MEGAMLA_SWEEP_ROUNDS");
  return rounds == nullptr ? 5 : std::atoi(rounds);
}

struct AttentionShape {
  int64_t tokens, heads;
  megamla_attention_output output = MEGAMLA_OUTPUT_FP8_PAIR;
  int64_t live_heads = 0;
  bool chunked = true, q_norm = false, rotate = true;
};

// Op: api::DecodeAttention or api::PrefillAttention, whose parameter struct Params is.
template <class Op, class Params>
class GpuAttention {
 public:
  static constexpr int64_t kPositions = 100;

  // Several times: the same bits.
  void run(int repeats = 10) {
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = MEGAMLA_DEVICE_CUDA;
    exec.stream = app::gpu::stream();
    const auto placed = app::placed<Params>(p_, arena_);
    ASSERT_NO_FATAL_FAILURE(take_workspace(exec));
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
    expect_guards_intact();
  }

  // Recorded once. Each replay finds another step in the same buffers, the second time the same bits.
  void replay(int replays, const std::function<void()>& next_step) {
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = MEGAMLA_DEVICE_CUDA;
    exec.stream = app::gpu::stream();
    const auto placed = app::placed<Params>(p_, arena_);
    ASSERT_NO_FATAL_FAILURE(take_workspace(exec));
    const auto call = [&] {
      const api::Result ran = api::run(placed, exec);
      EXPECT_TRUE(ran) << ran.message();
    };
    arena_.upload();
    call();  // brings the kernel to the GPU
    const app::gpu::Graph graph(call);
    for (int i = 0; i < replays; ++i) {
      SCOPED_TRACE("replay " + std::to_string(i));
      next_step();
      arena_.upload();
      for (const bool again : {false, true}) {
        graph.replay();
        arena_.download();
        const std::vector<uint8_t> now = bytes_of(p_.out);
        if (again) {
          ASSERT_EQ(now, out_);
        }
        out_ = now;
      }
      expect_guards_intact();
      expect_close_to_reference();
    }
  }

  // Of every step-th row and the last.
  void expect_close_to_reference(int64_t step = 1) {
    const int64_t tokens = p_.q.shape[0];
    const int64_t live = live_heads();
    std::vector<float> got;
    std::vector<float> expected;
    std::vector<float> o(static_cast<size_t>(shape_.heads * 512));
    std::vector<float> stats[2];
    for (std::vector<float>& s : stats) s.resize(static_cast<size_t>(shape_.heads));
    for (int64_t t = 0; t < tokens; t = t == tokens - 1 ? tokens : std::min(t + step, tokens - 1)) {
      Params truth = p_;
      for (megamla_tensor* row : rows_of(truth)) {
        if (present(*row)) *row = slice(*row, t, t + 1);
      }
      ops::for_each_view(truth, [](auto& view) { view.cuda_device = -1; });
      truth.output = MEGAMLA_OUTPUT_F32;
      truth.out = host_tensor(o.data(), MEGAMLA_F32, {1, shape_.heads, 512});
      truth.out_scale = {};
      truth.lse = host_tensor(stats[0].data(), MEGAMLA_F32, {1, shape_.heads});
      if constexpr (kHasMaximum) truth.max_logits = host_tensor(stats[1].data(), MEGAMLA_F32, {1, shape_.heads});
      const api::Result ran = api::run(truth, api::Exec(MEGAMLA_DEVICE_REFERENCE));
      ASSERT_TRUE(ran) << ran.message();
      expected.insert(expected.end(), o.begin(), o.begin() + live * 512);
      for (int64_t i = 0; i < live * 512; ++i) got.push_back(value(t, i / 512, i % 512));
      SCOPED_TRACE("row " + std::to_string(t));
      expect_lse(&at<float>(p_.lse, t, 0), stats[0].data(), live);
      if constexpr (kHasMaximum) expect_lse(&at<float>(p_.max_logits, t, 0), stats[1].data(), live);
    }
    const auto bound = shape_.output == MEGAMLA_OUTPUT_FP8_PAIR ? fp8_bound(largest_) : bf16_bound(largest_);
    expect_within(
        bound, static_cast<int64_t>(got.size()), [&](int64_t i) { return got[static_cast<size_t>(i)]; },
        [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
  }

  // What is left of the call when it is about rows begin .. end - 1 alone.
  void keep_rows(int64_t begin, int64_t end) {
    for (megamla_tensor* row : rows_of(p_)) {
      if (present(*row)) *row = slice(*row, begin, end);
    }
    first_row_ += begin;
  }
  const std::vector<uint8_t>& out() const { return out_; }
  std::vector<uint8_t> row_bytes(int64_t t) const {
    const auto size = static_cast<int64_t>(out_.size()) / shape_.tokens;
    return {out_.begin() + t * size, out_.begin() + (t + 1) * size};
  }

 protected:
  static constexpr bool kHasMaximum = requires(Params p) { p.max_logits; };

  GpuAttention(const AttentionShape& shape, uint64_t seed) : random_(seed), shape_(shape) {
    constexpr int64_t kDrawn = 1 << 22;
    p_.q = tensor(MEGAMLA_BF16, {shape.tokens, shape.heads, 512});
    int64_t drawn = 0;  // millions of values repeat
    fill<uint16_t>(p_.q, [&] {
      const int64_t i = drawn++;
      return i < kDrawn ? format::to_bf16(normal_(random_)).bits : data<uint16_t>(p_.q)[i - kDrawn];
    });
    p_.q_layout = shape.chunked ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
    p_.q_norm = shape.q_norm;
    p_.q_norm_eps = 1e-6F;
    if (shape.rotate) {
      p_.positions = tensor(MEGAMLA_I64, {shape.tokens});
      fill<int64_t>(p_.positions, [&] { return any(0, 20) == 0 ? any(-3, kPositions + 3) : any(0, kPositions - 1); });
      p_.cos_sin = tensor(MEGAMLA_F32, {kPositions, 64});
      fill_table(p_.cos_sin);
    }
    p_.attn_sink = tensor(MEGAMLA_F32, {shape.heads});
    fill<float>(p_.attn_sink, [&] { return normal_(random_); });
    p_.live_heads = static_cast<int32_t>(shape.live_heads);
    p_.output = shape.output;
    make_outputs();
  }

  virtual ~GpuAttention() = default;
  void take_workspace(megamla_exec& exec) {
    megamla_limits limits = ops::op_of(static_cast<const Params*>(nullptr)).limits_of(p_);
    limits.struct_size = sizeof(limits);
    const api::Result told = api::workspace_size<Op>(limits, MEGAMLA_DEVICE_CUDA, &exec.workspace_bytes);
    ASSERT_TRUE(told) << told.message();
    exec.workspace = arena_.device_bytes(exec.workspace_bytes);
  }
  // The tensors with a row for each query token.
  virtual std::vector<megamla_tensor*> rows_of(Params& p) const = 0;

  // Other queries and positions; the lists are the op's.
  void change_query() {
    fill<uint16_t>(p_.q, [&] { return format::to_bf16(normal_(random_)).bits; });
    if (present(p_.positions)) fill<int64_t>(p_.positions, [&] { return any(0, kPositions - 1); });
  }
  // What a captured graph finds in a row that a replay does not need: no length, all else from another time.
  void make_stale(int64_t row, const megamla_tensor& lens, const megamla_tensor& list) {
    at<int32_t>(lens, row) = 0;
    for (int64_t i = 0; i < list.shape[1]; ++i) {
      const int32_t stale[] = {INT32_MAX - static_cast<int32_t>(i), INT32_MIN, 0, -1};
      at<int32_t>(list, row, i) = stale[i % 4];
    }
    if (present(p_.positions)) at<int64_t>(p_.positions, row) = row % 2 == 0 ? INT64_MAX : -7;
  }

  int64_t any(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, int64_t row_padding = 0) {
    megamla_tensor t = host_tensor(nullptr, dtype, shape);
    if (t.ndim > 1) t.stride[0] += row_padding;
    t.data = arena_.bytes(t.shape[0] * t.stride[0] * megamla_dtype_size(dtype), kFill);
    t.cuda_device = arena_.cuda_device();
    return t;
  }

  // Lengths of lists of `width`: none and negative ones first, then most of them whole. Entries past them become
  // `beyond`.
  void fill_lengths(const megamla_tensor& lens, const megamla_tensor& list, int32_t beyond) {
    const int64_t width = list.shape[1];
    int64_t row = 0;
    fill<int32_t>(lens, [&] {
      const int64_t length = row < 2 && shape_.tokens > 2 ? -row : any(0, 3) == 0 ? any(-10, width + 10) : width;
      for (int64_t i = std::max<int64_t>(length, 0); i < width; ++i) at<int32_t>(list, row, i) = beyond;
      ++row;
      return static_cast<int32_t>(length);
    });
  }

  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  app::Arena arena_{MEGAMLA_DEVICE_CUDA};
  Op p_;
  float largest_ = 1;  // |key value|

 private:
  static constexpr uint8_t kFill = 0xa5;
  static constexpr int64_t kGuards = 4;  // rows before and after those of the call

  int64_t live_heads() const { return shape_.live_heads == 0 ? shape_.heads : shape_.live_heads; }
  megamla_tensor rows_inside(const megamla_tensor& t) const { return slice(t, kGuards, kGuards + shape_.tokens); }

  void make_outputs() {
    const int64_t rows = shape_.tokens + 2 * kGuards;
    const int64_t groups = shape_.heads / 8;
    if (shape_.output == MEGAMLA_OUTPUT_FP8_PAIR) {
      const int64_t columns = format::round_up(rows, 4);
      whole_out_ = tensor(MEGAMLA_F8_E4M3, {rows, groups, 4096});
      whole_scale_ = tensor(MEGAMLA_I32, {groups, 32, columns});
      megamla_tensor scale = host_tensor(whole_scale_.data, MEGAMLA_I32, {rows, groups, 32});
      scale.stride[0] = 1, scale.stride[1] = 32 * columns, scale.stride[2] = columns;
      scale.cuda_device = arena_.cuda_device();
      p_.out_scale = rows_inside(scale);
    } else {
      whole_out_ =
          tensor(shape_.output == MEGAMLA_OUTPUT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F32, {rows, shape_.heads, 512}, 24);
    }
    p_.out = rows_inside(whole_out_);
    whole_lse_ = tensor(MEGAMLA_F32, {rows, shape_.heads}, 3);
    p_.lse = rows_inside(whole_lse_);
    if constexpr (kHasMaximum) {
      whole_maximum_ = tensor(MEGAMLA_F32, {rows, shape_.heads}, 1);
      p_.max_logits = rows_inside(whole_maximum_);
    }
  }

  // Rows around those of the call, heads beyond the live ones and the padding of rows are as they were.
  void expect_guards_intact() const {
    expect_rows_intact(whole_out_, shape_.output == MEGAMLA_OUTPUT_FP8_PAIR ? live_heads() / 8 : live_heads());
    expect_rows_intact(whole_lse_, live_heads());
    if constexpr (kHasMaximum) expect_rows_intact(whole_maximum_, live_heads());
    if (!present(p_.out_scale)) return;
    for (int64_t g = 0; g < whole_scale_.shape[0]; ++g) {
      for (int64_t w = 0; w < 32; ++w) {
        for (int64_t column = 0; column < whole_scale_.shape[2]; ++column) {
          if (g < live_heads() / 8 && is_mine(column)) continue;
          ASSERT_EQ(at<uint32_t>(whole_scale_, g, w, column), 0x01010101U * kFill)
              << "scale group " << g << ", word " << w << ", column " << column;
        }
      }
    }
  }
  bool is_mine(int64_t row) const {
    const int64_t begin = kGuards + first_row_;
    return row >= begin && row < begin + p_.q.shape[0];
  }
  // `columns`: the extent of dimension 1 that may change.
  void expect_rows_intact(const megamla_tensor& t, int64_t columns) const {
    const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
    const auto* bytes = static_cast<const uint8_t*>(t.data);
    for (int64_t row = 0; row < t.shape[0]; ++row) {
      const int64_t begin = row * t.stride[0] * size + (is_mine(row) ? columns * t.stride[1] * size : 0);
      for (int64_t i = begin; i < (row + 1) * t.stride[0] * size; ++i) {
        ASSERT_EQ(bytes[i], kFill) << "row " << row - kGuards << ", byte " << i - row * t.stride[0] * size;
      }
    }
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

  AttentionShape shape_;
  megamla_tensor whole_out_{}, whole_scale_{}, whole_lse_{}, whole_maximum_{};
  int64_t first_row_ = 0;
  std::vector<uint8_t> out_;
};

}  // namespace megamla::test
