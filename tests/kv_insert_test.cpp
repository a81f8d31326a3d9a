// kv_insert: every byte of the pool against rows rotated and encoded one by one.
#include "megamla/kv_insert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "support/bad_input.hpp"
#include "support/insert_problem.hpp"

namespace megamla::test {
namespace {

void check(InsertProblem& problem) {
  const std::vector<uint8_t> before = problem.cache.bytes();
  const ExpectedPool expected = expected_pool(problem);
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
      InsertProblem problem(kind, 1 + static_cast<int64_t>(random() % 30), page_size, tokens,
                            std::max<int64_t>(num_slots, 0), round % 2 == 0 ? MEGAMLA_I64 : MEGAMLA_I32, random);
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
                                       InsertProblem::kTableRows,
                                       wide ? INT64_MAX : INT32_MAX,
                                       wide ? (int64_t{1} << 32) + 1 : InsertProblem::kTableRows + 1,
                                       wide ? INT64_MIN : INT32_MIN};
      for (int64_t t = 0; t < tokens; ++t) {
        problem.set_position(t, random() % 8 == 0 ? bad_positions[random() % 6]
                                                  : static_cast<int64_t>(random() % InsertProblem::kTableRows));
      }
      check(problem);
    }
  }
}

TEST(KvInsert, WithoutATableRowsAreStoredAsTheyAre) {
  std::mt19937 random(12);
  for (const CacheKind kind : kCacheKinds) {
    InsertProblem problem(kind, 3, 8, 20, 20, MEGAMLA_I64, random);
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
    InsertProblem problem(kind, 2, 4, 64, 64, MEGAMLA_I64, random);
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
    InsertProblem problem(kind, 1, 4, 2, 2, MEGAMLA_I64, random);
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
  InsertProblem none(kCacheKinds[0], 2, 4, 0, 3, MEGAMLA_I64, random);
  none.slots.fill<int64_t>(1);
  check(none);
  EXPECT_EQ(none.skipped.at<int64_t>(0), 0);
  InsertProblem no_pages(kCacheKinds[1], 0, 4, 2, 2, MEGAMLA_I64, random);
  no_pages.slots.fill<int64_t>(0);
  no_pages.set_position(0, 1);
  no_pages.set_position(1, 2);
  check(no_pages);
  EXPECT_EQ(no_pages.skipped.at<int64_t>(0), 2);
}

TEST(KvInsert, BadArguments) {
  using P = megamla_kv_insert_params;
  std::mt19937 random(18);
  InsertProblem problem(kCacheKinds[0], 3, 4, 3, 4, MEGAMLA_I64, random);
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
