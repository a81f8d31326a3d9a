// What no valid index names is neither read nor written: NaN in unused cache rows, the stale indices of a captured
// graph's padded rows, slots of -1 and beyond the pool.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/decode_problem.hpp"
#include "support/insert_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void spoil(const megamla_kv_cache& cache, int64_t slot) {
  const auto kind = static_cast<megamla_kv_format>(cache.format);
  const auto record = format::slot_bytes(cache, slot);
  std::fill_n(record.data, format::data_bytes(kind), uint8_t{0xff});  // NaN in every format
  std::fill_n(record.scale, format::scale_bytes(kind), uint8_t{0xff});
}

// Memory whose second half must not be touched: on a host an access ends the process.
class HalfForbidden {
 public:
  explicit HalfForbidden(int64_t half, bool enforce)
      : half_(format::round_up(half, sysconf(_SC_PAGESIZE))), memory_(2 * half_) {
    std::memset(forbidden(), 0xff, static_cast<size_t>(half_));
    if (enforce) {
      EXPECT_EQ(mprotect(forbidden(), static_cast<size_t>(half_), PROT_NONE), 0);
    }
  }
  char* data() const { return static_cast<char*>(memory_.data()); }
  char* forbidden() const { return data() + half_; }
  int64_t half() const { return half_; }

 private:
  int64_t half_;
  SparseMemory memory_;
};

class UnusedDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(UnusedDecode);

// Pages of 4, 13 tokens valid, all other records NaN; the list's columns past the length name them.
TEST_P(UnusedDecode, NanBehindTheLastToken) {
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    DecodeShape shape{.tokens = 2, .heads = 16, .window_width = 16, .compressed_width = 16};
    shape.window_page = shape.compressed_page = 4;
    shape.compressed = kind;
    if (kind.format != MEGAMLA_KV_NVFP4_288) shape.window = kind;
    DecodeProblem problem(shape);
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    for (const auto& [cache, slots, lens] :
         {std::tuple{&problem.window, &problem.window_slots, &problem.window_lens},
          std::tuple{&problem.compressed, &problem.compressed_slots, &problem.compressed_lens}}) {
      for (int64_t slot = 0; slot < cache->num_slots(); ++slot) {
        slot < 13 ? problem.write_record(*cache, slot) : spoil(cache->view(), slot);
      }
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t i = 0; i < 16; ++i) slots->at<int32_t>(t, i) = static_cast<int32_t>(i);
      }
      lens->fill<int32_t>(13);
    }
    expect_ok(run_reference(problem.params));
    for (const float o : problem.o.values<float>()) ASSERT_TRUE(std::isfinite(o));
    expect_close(problem, [&](const auto& p) { return run(p); });
  }
}

TEST_P(UnusedDecode, PaddedRowsOfACapturedGraph) {
  constexpr int64_t kReal = 3;
  constexpr int64_t kPadded = 8;
  DecodeShape shape{.tokens = kPadded, .heads = 16, .window_width = 128, .compressed_width = 40};
  shape.window_page = shape.compressed_page = 1;
  DecodeProblem problem(shape);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  auto real = problem.params;
  for (megamla_tensor* t : {&real.q, &real.positions, &real.window_slots, &real.window_lens, &real.compressed_slots,
                            &real.compressed_lens, &real.out, &real.lse}) {
    *t = slice(*t, 0, kReal);
  }
  real.batch_invariant = 1;
  expect_ok(run(real));
  const std::vector<float> expected = problem.o.values<float>();
  // The window's pool goes where only slots that real rows name may be touched.
  const megamla_kv_cache near = problem.window.view();
  const HalfForbidden memory(near.num_pages * near.page_stride, !on_gpu());
  std::memcpy(memory.data(), near.data, static_cast<size_t>(near.num_pages * near.page_stride));
  auto p = problem.params;
  p.batch_invariant = 1;
  p.window.data = memory.data();
  p.window.num_pages = 2 * memory.half() / near.page_stride;
  const int64_t stale = memory.half() / near.page_stride + 1;
  for (int64_t t = kReal; t < kPadded; ++t) {
    problem.window_lens.at<int32_t>(t) = problem.compressed_lens.at<int32_t>(t) = 0;
    problem.positions.at<int64_t>(t) = t % 2 == 0 ? INT64_MAX : DecodeProblem::kPositions;  // stale, too
    for (int64_t i = 0; i < 128; ++i) {
      const int64_t values[] = {stale + i % 100, INT32_MAX, INT32_MIN, stale};
      problem.window_slots.at<int32_t>(t, i) = static_cast<int32_t>(values[i % 4]);
    }
    for (int64_t i = 0; i < 40; ++i) problem.compressed_slots.at<int32_t>(t, i) = INT32_MAX - static_cast<int32_t>(i);
  }
  problem.o.refill();
  problem.lse.refill();
  expect_ok(run(p));
  EXPECT_TRUE(same_bytes(problem.o.as<float>(), expected.data(), kReal * 16 * 2048)) << "real rows";
  for (int64_t t = kReal; t < kPadded; ++t) {
    for (int64_t h = 0; h < 16; ++h) {
      EXPECT_EQ(problem.lse.at<float>(t, h), kInfinity);
      for (int64_t d = 0; d < 512; ++d) ASSERT_EQ(problem.o.at<float>(t, h, d), 0.0F) << t;
    }
  }
}

class UnusedPrefill : public EveryImplementation<megamla_prefill_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(UnusedPrefill);

TEST_P(UnusedPrefill, NanRowsAndPaddedRows) {
  constexpr int64_t kRows = 64;
  PrefillProblem problem(6, 8, 20, kRows, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  const HalfForbidden memory(kRows * 1024, !on_gpu());
  auto p = problem.params;
  p.kv = host_tensor(memory.data(), MEGAMLA_BF16, {2 * memory.half() / 1024, 512});
  for (int64_t r = 0; r < kRows; ++r)  // odd rows are NaN already
    std::memcpy(memory.data() + r * 1024, &problem.kv.at<format::Bf16>(r, 0), 1024);
  const auto stale = static_cast<int32_t>(memory.half() / 1024);
  for (int64_t t = 0; t < 6; ++t) {
    const int32_t length = t < 4 ? 17 : 0;
    problem.lengths.at<int32_t>(t) = length;
    for (int64_t i = 0; i < 20; ++i)
      problem.indices.at<int32_t>(t, i) = i < length ? static_cast<int32_t>(i * 2) : stale;
  }
  expect_ok(run(p));
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t h = 0; h < 8; ++h) {
      EXPECT_EQ(problem.lse.at<float>(t, h) == kInfinity, t >= 4);
      for (int64_t d = 0; d < 512; ++d) {
        const float o = problem.o.at<float>(t, h, d);
        ASSERT_TRUE(t < 4 ? std::isfinite(o) : o == 0) << t << " " << o;
      }
    }
  }
}

// The row behind the last one is forbidden memory, and its index names no row.
TEST_P(UnusedPrefill, TheIndexOfOneRowTooMany) {
  constexpr int64_t kRows = 8;
  PrefillProblem problem(3, 8, 6, kRows, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  const HalfForbidden memory(kRows * 1024, !on_gpu());
  auto p = problem.params;
  p.kv = host_tensor(memory.forbidden() - kRows * 1024, MEGAMLA_BF16, {kRows, 512});
  for (int64_t r = 0; r < kRows; ++r)
    std::memcpy(&at<format::Bf16>(p.kv, r, 0), &problem.kv.at<format::Bf16>(0, 0), 1024);
  for (int64_t t = 0; t < 3; ++t) {
    problem.lengths.at<int32_t>(t) = 6;
    for (int64_t i = 0; i < 6; ++i)
      problem.indices.at<int32_t>(t, i) = static_cast<int32_t>(t == 1 ? kRows : i % 2 == 0 ? kRows - 1 : kRows + i / 2);
  }
  expect_ok(run(p));
  for (int64_t h = 0; h < 8; ++h) {
    EXPECT_EQ(problem.lse.at<float>(1, h), kInfinity);
    // Three times the same key.
    EXPECT_NEAR(problem.lse.at<float>(0, h), problem.max_logits.at<float>(0, h) + std::log(3.0F), 1e-4);
  }
}

class UnusedGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(UnusedGather);

TEST_P(UnusedGather, NanBehindTheLastToken) {
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    PagedCache cache(kind, 5, 4, 16);
    std::mt19937_64 random(22);
    const int32_t pages[] = {2, 0, 3, 1};
    for (int64_t slot = 0; slot < cache.num_slots(); ++slot) spoil(cache.view(), slot);
    for (int64_t position = 0; position < 13; ++position) {
      float x[512];
      for (float& v : x) v = std::normal_distribution<float>()(random);
      const auto record = format::slot_bytes(cache.view(), pages[position / 4] * 4 + position % 4);
      format::encode_row(kind.format, x, record.data, record.scale);
    }
    TensorBuffer seq_lens(MEGAMLA_I32, {1});
    TensorBuffer table(MEGAMLA_I32, {1, 4});
    TensorBuffer out(MEGAMLA_BF16, {1, 16, 512});
    seq_lens.fill<int32_t>(13);
    table.assign(std::vector<int32_t>(pages, pages + 4));
    megamla_kv_gather_params p;
    megamla_kv_gather_init(&p);
    p.cache = cache.view();
    p.seq_lens = seq_lens;
    p.block_table = table;
    p.out = out;
    out.fill(format::to_bf16(7));
    expect_ok(run(p));
    for (int64_t i = 0; i < 13 * 512; ++i) ASSERT_TRUE(std::isfinite(format::to_float(out.as<format::Bf16>()[i])));
    for (int64_t i = 13 * 512; i < 16 * 512; ++i) ASSERT_EQ(format::to_float(out.as<format::Bf16>()[i]), 7.0F);
  }
}

class UnusedInsert : public EveryImplementation<megamla_kv_insert_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(UnusedInsert);

// Behind the pool lies memory that must not be touched.
TEST_P(UnusedInsert, SlotsOfMinusOneAndBeyondThePool) {
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    constexpr int64_t kTokens = 12;
    std::mt19937 random(1);
    InsertProblem problem(kind, 1, 4, kTokens, kTokens, MEGAMLA_I64, random);
    problem.identity_slots();
    const int64_t pool_bytes = format::round_up(problem.params.cache.page_stride, sysconf(_SC_PAGESIZE));
    const HalfForbidden memory(pool_bytes, !on_gpu());
    auto p = problem.params;
    p.cache = describe_cache(kind, memory.forbidden() - problem.params.cache.page_stride / 16 * 16, 1, 4, 0);
    p.cache.page_stride = problem.params.cache.page_stride;
    const int64_t beyond[] = {4, 5, int64_t{1} << 31, int64_t{1} << 32, INT64_MAX};
    problem.slots.assign<int64_t>(
        {-1, 2, beyond[0], -7, beyond[1], 0, beyond[2], INT64_MIN, beyond[3], beyond[4], 3, -1});
    const std::vector<char> before(memory.data(), memory.forbidden());
    expect_ok(run(p));
    EXPECT_EQ(problem.skipped.at<int64_t>(0), 5) << "negative slots do not count";
    // The three rows that have a slot, one by one.
    const std::vector<char> got(memory.data(), memory.forbidden());
    std::memcpy(memory.data(), before.data(), before.size());
    for (const int64_t t : {1, 5, 10}) {
      auto one = p;
      for (megamla_tensor* row : {&one.latent, &one.positions, &one.slot_mapping}) *row = slice(*row, t, t + 1);
      expect_ok(run(one));
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), memory.data()));
    EXPECT_FALSE(got == before);
  }
}

}  // namespace
}  // namespace megamla::test
