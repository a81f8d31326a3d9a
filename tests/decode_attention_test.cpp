// decode_attention: every CPU implementation against the reference, the rules for hostile input, and bad arguments.
#include "megamla/decode_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "core/attention_view.hpp"
#include "cpu/decode_attention.hpp"
#include "format/rope.hpp"
#include "support/attention_bounds.hpp"
#include "support/bad_input.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Params = megamla_decode_attention_params;

struct Shape {
  int64_t tokens = 3, heads = 16, window_width = 24, compressed_width = 0;
  CacheKind window{MEGAMLA_KV_FP8_528, MEGAMLA_PAGE_PLANAR};
  CacheKind compressed{MEGAMLA_KV_NVFP4_288, MEGAMLA_PAGE_PLANAR};
  int64_t window_page = 32, compressed_page = 53;
  int64_t gap = 48;  // bytes of other layers around the window's pages
  bool chunked = false;
};

struct Implementation {
  const char* name;
  Status (*supports)(const Params&);
  int64_t (*workspace)(const megamla_limits&);
  Status (*run)(const Params&, const megamla_exec&);
};
Status always(const Params&) { return {}; }
constexpr Implementation kImplementations[] = {
    {"avx512_bf16", cpu::decode_attention_avx512_supports, cpu::decode_attention_avx512_workspace,
     cpu::decode_attention_avx512},
    {"onednn_bf16", cpu::decode_attention_bf16_supports, cpu::decode_attention_bf16_workspace,
     cpu::decode_attention_bf16},
    {"onednn_f32", always, cpu::decode_attention_f32_workspace, cpu::decode_attention_f32},
};

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

// A call with poisoned caches (every unused slot is NaN) and lists with holes.
struct Problem {
  static constexpr int64_t kPositions = 100;
  Shape shape;
  std::mt19937_64 random;
  TensorBuffer q, positions, cos_sin, window_slots, window_lens, compressed_slots, compressed_lens, sink;
  PagedCache window, compressed;
  TensorBuffer o, lse;
  Params params;

  explicit Problem(const Shape& s, uint64_t seed = 1)
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
        compressed(s.compressed, 700 / s.compressed_page + 1, s.compressed_page, 16),
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

// Random shapes of every pair of formats, layouts and page sizes.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  std::mt19937_64 random(3);
  const int64_t pages[] = {1, 2, 53, 61};
  for (int i = 0; i < 16; ++i) {
    Shape s;
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

void expect_close(Problem& problem, const Implementation& implementation) {
  const Shape& s = problem.shape;
  Params p = problem.params;
  const std::vector<float> truth = problem.o.values<float>();
  const std::vector<float> truth_lse = problem.lse.values<float>();
  const int64_t count = s.tokens * s.heads * 512;
  TensorBuffer out(MEGAMLA_BF16, {s.tokens, s.heads, 512});
  TensorBuffer lse(MEGAMLA_F32, {s.tokens, s.heads}, 2);
  OutputPair pair(s.tokens, s.heads, s.tokens + 4 - s.tokens % 4);
  p.lse = lse;
  Workspace workspace(implementation.workspace(limits_for(p)));
  megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU);
  workspace.attach(exec);
  p.output = MEGAMLA_OUTPUT_BF16;
  p.out = out;
  ASSERT_TRUE(implementation.run(p, exec).ok());
  const auto element = [&](int64_t i) { return truth[static_cast<size_t>(i)]; };
  expect_within(
      bf16_bound(4), count, [&](int64_t i) { return format::to_float(out.as<format::Bf16>()[i]); }, element);
  for (int64_t t = 0; t < s.tokens; ++t)
    expect_lse(&lse.at<float>(t, 0), &truth_lse[static_cast<size_t>(t * s.heads)], s.heads);
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = pair.data;
  p.out_scale = pair.scale;
  ASSERT_TRUE(implementation.run(p, exec).ok());
  expect_within(
      fp8_bound(4), count, [&](int64_t i) { return pair.value(i / 512 / s.heads, i / 512 % s.heads, i % 512); },
      element);
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact() && pair.data.guards_intact());
  EXPECT_TRUE(pair.scale_memory.guards_intact() && workspace.guards_intact());
}

TEST(DecodeAttention, EveryImplementationIsWithinTheBoundsOfTheReference) {
  uint64_t seed = 0;
  for (const Shape& shape : shapes()) {
    Problem problem(shape, ++seed);
    problem.params.q_norm = seed % 3 == 0;
    problem.params.q_norm_eps = 1e-6F;
    ASSERT_EQ(run(problem.params, MEGAMLA_DEVICE_REFERENCE), MEGAMLA_OK) << megamla_last_error();
    for (const Implementation& implementation : kImplementations) {
      if (!implementation.supports(problem.params).ok()) continue;
      SCOPED_TRACE(std::string(implementation.name) + ", shape " + std::to_string(seed));
      expect_close(problem, implementation);
    }
  }
}

TEST(DecodeAttention, BitsDependOnTheRowAlone) {
  Shape shape;
  shape.tokens = 9;
  shape.compressed_width = 900;
  Problem problem(shape);
  for (const Implementation& implementation : kImplementations) {
    if (!implementation.supports(problem.params).ok()) continue;
    SCOPED_TRACE(implementation.name);
    std::vector<float> first;
    for (const int threads : {1, 2, 5, 8}) {
      megamla_limits limits = limits_for(problem.params);
      limits.num_threads = threads;
      Workspace workspace(implementation.workspace(limits));
      megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU, threads);
      workspace.attach(exec);
      problem.o.refill();
      ASSERT_TRUE(implementation.run(problem.params, exec).ok());
      if (first.empty()) first = problem.o.values<float>();
      EXPECT_EQ(std::memcmp(first.data(), problem.o.as<float>(), first.size() * sizeof(float)), 0) << threads;
      // One row alone, from the middle of the batch.
      Params p = problem.params;
      TensorBuffer alone(MEGAMLA_F32, {1, shape.heads, 512});
      for (megamla_tensor* t :
           {&p.q, &p.positions, &p.window_slots, &p.window_lens, &p.compressed_slots, &p.compressed_lens, &p.lse}) {
        *t = slice(*t, 4, 5);
      }
      p.out = alone;
      ASSERT_TRUE(implementation.run(p, exec).ok());
      const auto row = static_cast<size_t>(shape.heads * 512);
      EXPECT_EQ(std::memcmp(&first[4 * row], alone.as<float>(), row * sizeof(float)), 0) << threads;
    }
  }
}

TEST(DecodeAttention, PartsMergedThroughLseEqualOnePass) {
  Shape shape;
  shape.compressed_width = 300;
  for (const megamla_device device : kDevices) {
    Problem problem(shape);
    problem.params.attn_sink = {};
    problem.params.cos_sin = {};
    ASSERT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
    const auto whole = problem.o.values<float>();
    const auto whole_lse = problem.lse.values<float>();
    Params window_only = problem.params;
    window_only.compressed = {};
    window_only.compressed_slots = window_only.compressed_lens = {};
    ASSERT_EQ(run(window_only, device), MEGAMLA_OK) << megamla_last_error();
    const auto o1 = problem.o.values<float>();
    const auto lse1 = problem.lse.values<float>();
    problem.window_lens.fill<int32_t>(0);
    ASSERT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
    const auto o2 = problem.o.values<float>();
    const auto lse2 = problem.lse.values<float>();
    for (size_t i = 0; i < whole.size(); ++i) {
      const double a = std::exp(static_cast<double>(lse1[i / 512]) - whole_lse[i / 512]);
      const double b = std::exp(static_cast<double>(lse2[i / 512]) - whole_lse[i / 512]);
      ASSERT_NEAR(a + b, 1, 1e-4);
      ASSERT_NEAR(o1[i] * a + o2[i] * b, whole[i], device == MEGAMLA_DEVICE_REFERENCE ? 1e-5 : 4e-3) << i;
    }
  }
}

TEST(DecodeAttention, HostileRowsFollowTheContract) {
  Shape shape;
  shape.tokens = 8;
  for (const megamla_device device : kDevices) {
    SCOPED_TRACE(device_name(device));
    Problem problem(shape);
    const auto slots = static_cast<int32_t>(problem.window.num_slots());
    problem.window_lens.at<int32_t>(0) = -5;         // clamped to 0: no valid key
    problem.window_lens.at<int32_t>(1) = INT32_MAX;  // clamped to the width
    for (int64_t i = 20; i < shape.window_width; ++i) problem.window_slots.at<int32_t>(1, i) = INT32_MAX;
    for (int64_t i = 0; i < shape.window_width; ++i)
      problem.window_slots.at<int32_t>(2, i) = i % 2 == 0 ? slots : INT32_MIN;
    problem.positions.at<int64_t>(3) = (int64_t{1} << 32) + 3;  // row 3 of the table, were it cut to 32 bits
    problem.positions.at<int64_t>(4) = -1;
    problem.positions.at<int64_t>(5) = Problem::kPositions;
    problem.positions.at<int64_t>(6) = INT64_MIN;
    problem.window_lens.at<int32_t>(6) = 0;
    OutputPair pair(shape.tokens, shape.heads, 8);
    Params p = problem.params;
    p.output = MEGAMLA_OUTPUT_FP8_PAIR;
    p.out = pair.data;
    p.out_scale = pair.scale;
    ASSERT_EQ(run(p, device), MEGAMLA_OK) << megamla_last_error();
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
}

TEST(DecodeAttention, Sinks) {
  for (const megamla_device device : kDevices) {
    Problem problem(Shape{});
    Params p = problem.params;
    p.attn_sink = {};
    ASSERT_EQ(run(p, device), MEGAMLA_OK);
    const auto without = problem.o.values<float>();
    const auto lse = problem.lse.values<float>();
    problem.sink.fill(-kInfinity);
    problem.sink.at<float>(1) = kInfinity;
    problem.sink.at<float>(2) = 0.5F;
    ASSERT_EQ(run(problem.params, device), MEGAMLA_OK);
    EXPECT_EQ(problem.lse.values<float>(), lse);  // the sink is no part of it
    for (int64_t h = 0; h < problem.shape.heads; ++h) {
      const double share = h == 1 ? 0 : h == 2 ? 1 / (1 + std::exp(0.5 - lse[static_cast<size_t>(h)])) : 1;
      for (int64_t d = 0; d < 512; ++d) {
        const float expected = static_cast<float>(without[static_cast<size_t>(h * 512 + d)] * share);
        EXPECT_NEAR(problem.o.at<float>(0, h, d), expected, h == 2 ? 1e-6 : 0);
      }
    }
  }
}

TEST(DecodeAttention, LiveHeadsAloneAreWritten) {
  for (const megamla_device device : kDevices) {
    Problem problem(Shape{});
    ASSERT_EQ(run(problem.params, device), MEGAMLA_OK);
    const auto all = problem.o.values<float>();
    problem.params.live_heads = 8;
    problem.o.fill(7.0F);
    problem.lse.fill(7.0F);
    ASSERT_EQ(run(problem.params, device), MEGAMLA_OK);
    for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
      const bool live = i / 512 % problem.shape.heads < 8;
      ASSERT_EQ(problem.o.as<float>()[i], live ? all[static_cast<size_t>(i)] : 7.0F);
    }
    EXPECT_EQ(problem.lse.at<float>(0, 8), 7.0F);
  }
}

TEST(DecodeAttention, NoTokens) {
  Shape shape;
  shape.tokens = 0;
  for (const megamla_device device : kDevices) {
    Problem problem(shape);
    EXPECT_EQ(run(problem.params, device), MEGAMLA_OK) << megamla_last_error();
  }
}

TEST(DecodeAttention, PoolsBeyond32BitsOfBytes) {
  for (const CacheKind kind : {kCacheKinds[0], kCacheKinds[3]}) {
    Shape shape;
    shape.window = kind;
    Problem problem(shape);
    megamla_kv_cache far = describe_cache(kind, nullptr, 40, 32, 256 << 20);
    const SparseMemory memory(far.num_pages * far.page_stride);
    far.data = memory.data();
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t i = 0; i < shape.window_width; ++i) {
        const int64_t slot = static_cast<int64_t>(problem.random() % 1280);
        problem.window_slots.at<int32_t>(t, i) = static_cast<int32_t>(slot);
        float x[512];
        for (float& v : x) v = problem.normal();
        const auto record = format::slot_bytes(far, slot);
        format::encode_row(kind.format, x, record.data, record.scale);
      }
    }
    problem.params.window = far;
    ASSERT_EQ(run(problem.params, MEGAMLA_DEVICE_REFERENCE), MEGAMLA_OK) << megamla_last_error();
    for (const Implementation& implementation : kImplementations) {
      if (implementation.supports(problem.params).ok()) expect_close(problem, implementation);
    }
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
  Shape shape;
  shape.compressed_width = 40;
  shape.gap = 0;
  Problem problem(shape);
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
  Problem problem(Shape{});
  const megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU);
  const auto before = problem.o.bytes();
  EXPECT_EQ(megamla_decode_attention(&problem.params, &exec), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(problem.o.bytes(), before);
}

}  // namespace
}  // namespace megamla::test
