// kv_insert: every byte of the pool against rows rotated and encoded one by one.
#include "megamla/kv_insert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "support/bad_input.hpp"
#include "support/paged_cache.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kTableRows = 96;

struct Problem {
  PagedCache cache;
  TensorBuffer latent, positions, cos_sin, slots, skipped;
  megamla_kv_insert_params params;

  Problem(CacheKind kind, int64_t pages, int64_t page_size, int64_t tokens, int64_t num_slots, megamla_dtype index_type,
          std::mt19937& random)
      : cache(kind, pages, page_size, 48),
        latent(MEGAMLA_BF16, {tokens, 512}, 5),
        positions(index_type, {tokens}),
        cos_sin(MEGAMLA_F32, {kTableRows, 64}),
        slots(MEGAMLA_I64, {num_slots}),
        skipped(MEGAMLA_I64, {1}) {
    std::normal_distribution<float> normal;
    for (int64_t t = 0; t < tokens; ++t) {
      const float scale = std::ldexp(1.0F, static_cast<int>(random() % 20) - 10);
      for (int64_t d = 0; d < 512; ++d) latent.at<format::Bf16>(t, d) = format::to_bf16(normal(random) * scale);
    }
    for (int64_t r = 0; r < kTableRows; ++r) {
      for (int64_t j = 0; j < 32; ++j) {
        cos_sin.at<float>(r, j) = static_cast<float>(std::cos(0.37 * static_cast<double>(r * j)));
        cos_sin.at<float>(r, 32 + j) = static_cast<float>(std::sin(0.37 * static_cast<double>(r * j)));
      }
    }
    megamla_kv_insert_init(&params);
    params.latent = latent;
    params.positions = positions;
    params.cos_sin = cos_sin;
    params.slot_mapping = slots;
    params.cache = cache.view();
    params.skipped_rows = skipped;
  }

  void set_position(int64_t t, int64_t position) {
    if (positions.view().dtype == MEGAMLA_I64) {
      positions.at<int64_t>(t) = position;
    } else {
      positions.at<int32_t>(t) = static_cast<int32_t>(position);
    }
  }
};

struct Expected {
  std::vector<uint8_t> pool;
  int64_t skipped = 0;
};

// Row after row in order, so that the last of two rows for one slot stays.
Expected expected_pool(const Problem& problem) {
  const auto& p = problem.params;
  Expected expected{problem.cache.bytes()};
  for (int64_t t = 0; t < std::min(p.latent.shape[0], p.slot_mapping.shape[0]); ++t) {
    const int64_t slot = problem.slots.at<int64_t>(t);
    const bool has_positions = present(p.positions);
    const int64_t position = has_positions ? index_at(p.positions, t) : 0;
    const bool compressed = p.writer == MEGAMLA_WRITER_COMPRESSED;
    if (slot < 0) continue;
    if (compressed && position >= 0 && position % p.compress_ratio != p.compress_ratio - 1) continue;
    const bool needs_position = compressed || present(p.cos_sin);
    if (slot >= problem.cache.num_slots() || (needs_position && position < 0) ||
        (present(p.cos_sin) && position >= kTableRows)) {
      ++expected.skipped;
      continue;
    }
    float x[512];
    for (int64_t d = 0; d < 512; ++d) x[d] = to_float(problem.latent.at<const format::Bf16>(t, d));
    if (present(p.cos_sin)) {
      const int64_t row = compressed ? position / p.compress_ratio * p.compress_ratio : position;
      for (int64_t j = 0; j < 32; ++j) {
        const float c = problem.cos_sin.at<float>(row, j);
        const float s = problem.cos_sin.at<float>(row, 32 + j);
        const float x0 = x[448 + 2 * j];
        const float x1 = x[449 + 2 * j];
        const volatile float x1s = x1 * s;  // rounded before the fma
        const volatile float x1c = x1 * c;
        x[448 + 2 * j] = std::fma(x0, c, -x1s);
        x[449 + 2 * j] = std::fma(x0, s, x1c);
      }
      for (int64_t d = 448; d < 512 && !compressed; ++d) x[d] = format::round_to_bf16(x[d]);
    }
    const auto bytes = problem.cache.slot_in(expected.pool, slot);
    format::encode_row(static_cast<megamla_kv_format>(p.cache.format), x, bytes.data, bytes.scale);
  }
  return expected;
}

void check(Problem& problem) {
  const std::vector<uint8_t> before = problem.cache.bytes();
  const Expected expected = expected_pool(problem);
  for (const megamla_device device : kDevices) {
    for (const int threads : {1, 3}) {
      problem.cache.restore(before);
      const megamla_exec exec = exec_on(device, threads);
      ASSERT_EQ(megamla_kv_insert(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
      ASSERT_TRUE(problem.cache.bytes() == expected.pool) << device_name(device) << " with " << threads << " threads";
      EXPECT_EQ(problem.skipped.at<int64_t>(0), expected.skipped);
      EXPECT_TRUE(problem.skipped.guards_intact());
    }
  }
}

TEST(KvInsert, RandomRowsOfEveryFormatLayoutAndWriter) {
  std::mt19937 random(11);
  for (const CacheKind kind : kCacheKinds) {
    for (int round = 0; round < 12; ++round) {
      SCOPED_TRACE(name_of(kind));
      const int64_t page_size = std::vector<int64_t>{1, 2, 16, 53}[random() % 4];
      const int64_t tokens = static_cast<int64_t>(random() % 40);
      const int64_t num_slots = tokens + static_cast<int64_t>(random() % 7) - 3;
      Problem problem(kind, 1 + static_cast<int64_t>(random() % 30), page_size, tokens, std::max<int64_t>(num_slots, 0),
                      round % 2 == 0 ? MEGAMLA_I64 : MEGAMLA_I32, random);
      problem.params.writer = static_cast<int32_t>(random() % 2);
      problem.params.compress_ratio = 1 + static_cast<int32_t>(random() % 2);
      std::vector<int64_t> free_slots(static_cast<size_t>(problem.cache.num_slots()));
      std::iota(free_slots.begin(), free_slots.end(), 0);
      std::shuffle(free_slots.begin(), free_slots.end(), random);
      const int64_t hostile[] = {-1, INT64_MIN, problem.cache.num_slots(), INT64_MAX, int64_t{1} << 32};
      for (int64_t i = 0; i < problem.slots.view().shape[0]; ++i) {
        const bool bad = random() % 8 == 0 || free_slots.empty();
        problem.slots.at<int64_t>(i) = bad ? hostile[random() % 5] : free_slots.back();
        if (!bad) free_slots.pop_back();
      }
      const bool wide = problem.positions.view().dtype == MEGAMLA_I64;
      const int64_t bad_positions[] = {-1,
                                       -2,
                                       kTableRows,
                                       wide ? INT64_MAX : INT32_MAX,
                                       wide ? (int64_t{1} << 32) + 1 : kTableRows + 1,
                                       wide ? INT64_MIN : INT32_MIN};
      for (int64_t t = 0; t < tokens; ++t) {
        problem.set_position(
            t, random() % 8 == 0 ? bad_positions[random() % 6] : static_cast<int64_t>(random() % kTableRows));
      }
      check(problem);
    }
  }
}

TEST(KvInsert, WithoutATableRowsAreStoredAsTheyAre) {
  std::mt19937 random(12);
  for (const CacheKind kind : kCacheKinds) {
    Problem problem(kind, 3, 8, 20, 20, MEGAMLA_I64, random);
    for (int64_t t = 0; t < 20; ++t) {
      problem.slots.at<int64_t>(t) = 19 - t;
      problem.set_position(t, t == 3 ? -7 : (int64_t{1} << 40) + t);  // positions need no table here
    }
    problem.params.cos_sin = {nullptr, 0, 0, -1, 0, {}, {}};
    check(problem);
    problem.params.writer = MEGAMLA_WRITER_COMPRESSED;
    problem.params.compress_ratio = 2;
    check(problem);
    problem.params.writer = MEGAMLA_WRITER_WINDOW;
    problem.params.positions = {nullptr, 0, 0, -1, 0, {}, {}};
    check(problem);
  }
}

TEST(KvInsert, TheLastOfTwoRowsForOneSlotStays) {
  std::mt19937 random(13);
  for (const CacheKind kind : kCacheKinds) {
    Problem problem(kind, 2, 4, 64, 64, MEGAMLA_I64, random);
    for (int64_t t = 0; t < 64; ++t) {
      problem.slots.at<int64_t>(t) = static_cast<int64_t>(random() % 8);
      problem.set_position(t, t);
    }
    check(problem);
  }
}

TEST(KvInsert, ANonFiniteValueSpoilsItsScaleGroupAlone) {
  std::mt19937 random(14);
  const float values[] = {std::nanf(""), INFINITY, -INFINITY};
  for (const CacheKind kind : kCacheKinds) {
    const int64_t group = kind.format == MEGAMLA_KV_NVFP4_288 ? 16 : kind.format == MEGAMLA_KV_FP8_528 ? 32 : 64;
    Problem problem(kind, 1, 4, 2, 2, MEGAMLA_I64, random);
    problem.slots.assign<int64_t>({0, 1});
    for (int64_t d = 0; d < 512; ++d) problem.latent.at<format::Bf16>(1, d) = problem.latent.at<format::Bf16>(0, d);
    problem.set_position(0, 0);
    problem.set_position(1, 0);
    for (const float value : values) {
      constexpr int64_t kSpoilt = 70;
      problem.latent.at<format::Bf16>(1, kSpoilt) = format::to_bf16(value);
      check(problem);
      float rows[2][512];
      for (int64_t slot = 0; slot < 2; ++slot) {
        const auto bytes = format::slot_bytes(problem.params.cache, slot);
        format::decode_row(kind.format, bytes.data, bytes.scale, rows[slot]);
      }
      for (int64_t d = 0; d < 512; ++d) {
        if (d / group == kSpoilt / group) continue;
        ASSERT_EQ(rows[0][d], rows[1][d]) << name_of(kind) << " dim " << d;
      }
    }
  }
}

TEST(KvInsert, NoTokensAndNoPages) {
  std::mt19937 random(15);
  Problem none(kCacheKinds[0], 2, 4, 0, 3, MEGAMLA_I64, random);
  none.slots.fill<int64_t>(1);
  check(none);
  EXPECT_EQ(none.skipped.at<int64_t>(0), 0);
  Problem no_pages(kCacheKinds[1], 0, 4, 2, 2, MEGAMLA_I64, random);
  no_pages.slots.fill<int64_t>(0);
  no_pages.set_position(0, 1);
  no_pages.set_position(1, 2);
  check(no_pages);
  EXPECT_EQ(no_pages.skipped.at<int64_t>(0), 2);
}

// Slots on both sides of 2^31 and 2^32 bytes from the base, records of other pages untouched.
TEST(KvInsert, PoolsBeyond32BitOffsets) {
  std::mt19937 random(16);
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    constexpr int64_t kPages = 3500000;
    megamla_kv_cache cache = describe_cache(kind, nullptr, kPages, 1, 0);
    cache.page_stride = 1280;
    const SparseMemory memory(kPages * cache.page_stride);
    ASSERT_TRUE(memory.ok());
    cache.data = memory.data();
    const std::vector<int64_t> slots = {0, (int64_t{1} << 31) / 1280, (int64_t{1} << 31) / 1280 + 1,
                                        (int64_t{1} << 32) / 1280 + 1, kPages - 1};
    Problem problem(kind, 1, 1, 5, 5, MEGAMLA_I64, random);
    problem.slots.assign(slots);
    for (int64_t t = 0; t < 5; ++t) problem.set_position(t, 0);  // cosine 1, sine 0
    problem.params.cache = cache;
    for (const megamla_device device : kDevices) {
      for (const int64_t slot : slots) std::memset(static_cast<char*>(cache.data) + slot * 1280, 0, 1280);
      const megamla_exec exec = exec_on(device);
      ASSERT_EQ(megamla_kv_insert(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
      for (size_t i = 0; i < slots.size(); ++i) {
        float x[512];
        for (int64_t d = 0; d < 512; ++d) x[d] = to_float(problem.latent.at<format::Bf16>(static_cast<int64_t>(i), d));
        uint8_t data[576] = {};
        uint8_t scale[32] = {};
        format::encode_row(kind.format, x, data, scale);
        const auto* page = static_cast<const uint8_t*>(cache.data) + slots[i] * 1280;
        const int64_t data_bytes = format::data_bytes(kind.format);
        const int64_t record = format::record_bytes(kind.format);
        EXPECT_EQ(std::memcmp(page, data, static_cast<size_t>(data_bytes)), 0) << "slot " << slots[i];
        EXPECT_EQ(std::memcmp(page + data_bytes, scale, static_cast<size_t>(record - data_bytes)), 0);
        EXPECT_TRUE(all_zero(page + record, 1280 - record)) << "behind the record of slot " << slots[i];
      }
      EXPECT_TRUE(all_zero(static_cast<const uint8_t*>(cache.data) + 1280, 1280));
      EXPECT_TRUE(all_zero(static_cast<const uint8_t*>(cache.data) + (kPages - 2) * 1280, 1280));
    }
  }
}

TEST(KvInsert, MoreTokensThanAGridDimension) {
  constexpr int64_t kTokens = 66000;
  std::mt19937 random(17);
  Problem problem(kCacheKinds[1], 1, kTokens, 1, kTokens, MEGAMLA_I64, random);
  megamla_tensor latent = problem.latent;
  latent.shape[0] = kTokens;
  latent.stride[0] = 0;  // one row for all
  problem.params.latent = latent;
  TensorBuffer positions(MEGAMLA_I64, {kTokens});
  positions.fill<int64_t>(1);
  problem.params.positions = positions;
  for (int64_t t = 0; t < kTokens; ++t) problem.slots.at<int64_t>(t) = t;
  for (const megamla_device device : kDevices) {
    const megamla_exec exec = exec_on(device);
    ASSERT_EQ(megamla_kv_insert(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
    const auto first = format::slot_bytes(problem.params.cache, 0);
    for (const int64_t slot : {int64_t{65535}, int64_t{65536}, kTokens - 1}) {
      const auto bytes = format::slot_bytes(problem.params.cache, slot);
      EXPECT_EQ(std::memcmp(first.data, bytes.data, 256), 0) << slot;
      EXPECT_EQ(std::memcmp(first.scale, bytes.scale, 32), 0) << slot;
    }
  }
}

TEST(KvInsert, BadArguments) {
  using P = megamla_kv_insert_params;
  std::mt19937 random(18);
  Problem problem(kCacheKinds[0], 3, 4, 3, 4, MEGAMLA_I64, random);
  problem.params.cache.page_stride -= 48;
  problem.params.writer = MEGAMLA_WRITER_COMPRESSED;
  problem.params.compress_ratio = 2;
  problem.slots.assign<int64_t>({0, 1, 2, 3});
  for (int64_t t = 0; t < 3; ++t) problem.set_position(t, t);
  BadInput<P> bad("kv_insert", megamla_kv_insert, problem.params, {&problem.skipped});
  const std::vector<uint8_t> pool = problem.cache.bytes();
  bad.tensor("latent", &P::latent, true, 1);
  bad.tensor("positions", &P::positions, true, 0);
  bad.tensor("cos_sin", &P::cos_sin, false, 1);
  bad.tensor("slot_mapping", &P::slot_mapping, true, 0);
  bad.tensor("skipped_rows", &P::skipped_rows, false, 0);
  bad.cache("cache", &P::cache);
  bad.output("skipped_rows", &P::skipped_rows, {&P::latent, &P::positions, &P::cos_sin, &P::slot_mapping});
  for (const auto field : {&P::latent, &P::positions, &P::cos_sin, &P::slot_mapping, &P::skipped_rows}) {
    bad.expect("", "a tensor within the cache", [=](P& p) { (p.*field).data = p.cache.data; });
  }
  bad.expect("latent", "256 columns", [](P& p) { p.latent.shape[1] = 256; });
  bad.expect("positions", "four positions of three", [](P& p) { p.positions.shape[0] = 4; });
  bad.expect("cos_sin", "128 columns", [](P& p) { p.cos_sin.shape[1] = 128; });
  bad.expect("skipped_rows", "two counters", [](P& p) { p.skipped_rows.shape[0] = 2; });
  bad.expect("writer", "2", [](P& p) { p.writer = 2; });
  bad.expect("compress_ratio", "0", [](P& p) { p.compress_ratio = 0; });
  bad.expect("compress_ratio", "3", [](P& p) { p.compress_ratio = 3; });
  bad.expect("positions", "absent for the window writer with a table", [](P& p) {
    p.writer = MEGAMLA_WRITER_WINDOW;
    p.positions = {nullptr, 0, 0, -1, 0, {}, {}};
  });
  EXPECT_TRUE(problem.cache.bytes() == pool);
}

}  // namespace
}  // namespace megamla::test
