// A call of decode_attention for tests, and the comparison of its results with the reference's.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "format/rope.hpp"
#include "megamla/decode_attention.h"
#include "support/attention_bounds.hpp"
#include "support/every_implementation.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {

struct DecodeShape {
  int64_t tokens = 3, heads = 16, window_width = 24, compressed_width = 0;
  CacheKind window{MEGAMLA_KV_FP8_528, MEGAMLA_PAGE_PLANAR};
  CacheKind compressed{MEGAMLA_KV_NVFP4_288, MEGAMLA_PAGE_PLANAR};
  int64_t window_page = 32, compressed_page = 53;
  int64_t gap = 48;  // bytes of other layers around the window's pages
  bool chunked = false;
};

// A call with poisoned caches (every unused slot is NaN) and lists with holes.
struct DecodeProblem {
  static constexpr int64_t kPositions = 100;
  DecodeShape shape;
  std::mt19937_64 random;
  TensorBuffer q, positions, cos_sin, window_slots, window_lens, compressed_slots, compressed_lens, sink;
  PagedCache window, compressed;
  TensorBuffer o, lse;
  megamla_decode_attention_params params;

  explicit DecodeProblem(const DecodeShape& s, uint64_t seed = 1)
      : shape(s),
        random(seed),
        q(MEGAMLA_BF16, {s.tokens, s.heads, 512}, 16),
        positions(MEGAMLA_I64, {s.tokens}),
        cos_sin(MEGAMLA_F32, {kPositions, 64}, 4),
        window_slots(MEGAMLA_I32, {s.tokens, s.window_width}, 3),
        window_lens(MEGAMLA_I32, {s.tokens}),
        compressed_slots(MEGAMLA_I32, {s.tokens, s.compressed_width}, 5),
        compressed_lens(MEGAMLA_I32, {s.tokens}),
        sink(MEGAMLA_F32, {s.heads}),
        window(s.window, 300 / s.window_page + 1, s.window_page, s.gap),
        compressed(s.compressed, 1200 / s.compressed_page + 1, s.compressed_page, 16),
        o(MEGAMLA_F32, {s.tokens, s.heads, 512}),
        lse(MEGAMLA_F32, {s.tokens, s.heads}) {
    fill_query();
    fill_lists(window, window_slots, window_lens);
    fill_lists(compressed, compressed_slots, compressed_lens);
    megamla_decode_attention_init(&params);
    params.q = q;
    params.q_layout = s.chunked ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
    params.positions = positions;
    params.cos_sin = cos_sin;
    params.window = window.view();
    params.window_slots = window_slots;
    params.window_lens = window_lens;
    if (s.compressed_width > 0) {
      params.compressed = compressed.view();
      params.compressed_slots = compressed_slots;
      params.compressed_lens = compressed_lens;
    }
    params.attn_sink = sink;
    params.output = MEGAMLA_OUTPUT_F32;
    params.out = o;
    params.lse = lse;
  }

  float normal() { return std::normal_distribution<float>()(random); }

  void fill_query() {
    for (int64_t t = 0; t < shape.tokens; ++t) {
      positions.at<int64_t>(t) = static_cast<int64_t>(random() % kPositions);
      for (int64_t i = 0; i < shape.heads * 512; ++i) (&q.at<format::Bf16>(t, 0))[i] = format::to_bf16(normal());
    }
    for (int64_t p = 0; p < kPositions; ++p) {
      for (int64_t j = 0; j < 32; ++j) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(j) / 32);
        cos_sin.at<float>(p, j) = static_cast<float>(std::cos(angle));
        cos_sin.at<float>(p, 32 + j) = static_cast<float>(std::sin(angle));
      }
    }
    for (int64_t h = 0; h < shape.heads; ++h) sink.at<float>(h) = normal();
  }

  void fill_lists(PagedCache& cache, TensorBuffer& slots, TensorBuffer& lens) {
    std::vector<uint8_t> bytes = cache.bytes();
    std::fill(bytes.begin(), bytes.end(), uint8_t{0xff});  // NaN in every format
    cache.restore(bytes);
    const auto count = static_cast<uint64_t>(cache.num_slots());
    for (int64_t t = 0; t < shape.tokens; ++t) {
      const int64_t width = slots.view().shape[1];
      lens.at<int32_t>(t) = static_cast<int32_t>(width - (width > 2 ? static_cast<int64_t>(random() % 3) : 0));
      for (int64_t i = 0; i < width; ++i) {
        const bool used = i < lens.at<int32_t>(t) && random() % 8 != 0;
        const int64_t slot = static_cast<int64_t>(random() % (count / 2)) * 2;  // odd slots stay poisoned
        slots.at<int32_t>(t, i) = static_cast<int32_t>(used ? slot : i < lens.at<int32_t>(t) ? -1 - slot : slot + 1);
        if (used) write_record(cache, slot);
      }
    }
  }
  void write_record(const PagedCache& cache, int64_t slot) {
    float x[512];
    for (float& v : x) v = normal();
    const auto record = format::slot_bytes(cache.view(), slot);
    format::encode_row(static_cast<megamla_kv_format>(cache.view().format), x, record.data, record.scale);
  }
};

// The implementation's bf16 and FP8 outputs and its lse against what is in problem.o and problem.lse. `run` takes
// parameters and returns a Status.
template <class Run>
void expect_close(const DecodeProblem& problem, Run&& run) {
  const DecodeShape& s = problem.shape;
  megamla_decode_attention_params p = problem.params;
  const std::vector<float> truth = problem.o.values<float>();
  const std::vector<float> truth_lse = problem.lse.values<float>();
  const int64_t count = s.tokens * s.heads * 512;
  TensorBuffer out(MEGAMLA_BF16, {s.tokens, s.heads, 512});
  TensorBuffer lse(MEGAMLA_F32, {s.tokens, s.heads}, 2);
  OutputPair pair(s.tokens, s.heads, s.tokens + 4 - s.tokens % 4);
  p.lse = lse;
  p.output = MEGAMLA_OUTPUT_BF16;
  p.out = out;
  expect_ok(run(p));
  const auto element = [&](int64_t i) { return truth[static_cast<size_t>(i)]; };
  expect_within(
      bf16_bound(4), count, [&](int64_t i) { return format::to_float(out.as<format::Bf16>()[i]); }, element);
  for (int64_t t = 0; t < s.tokens; ++t)
    expect_lse(&lse.at<float>(t, 0), &truth_lse[static_cast<size_t>(t * s.heads)], s.heads);
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = pair.data;
  p.out_scale = pair.scale;
  expect_ok(run(p));
  expect_within(
      fp8_bound(4), count, [&](int64_t i) { return pair.value(i / 512 / s.heads, i / 512 % s.heads, i % 512); },
      element);
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact() && pair.data.guards_intact());
  EXPECT_TRUE(pair.scale_memory.guards_intact());
}

}  // namespace megamla::test
