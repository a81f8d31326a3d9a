// kv_gather: what kv_insert stored comes back, and nothing else is written.
#include "megamla/kv_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "megamla/kv_insert.h"
#include "support/bad_input.hpp"
#include "support/paged_cache.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

struct Problem {
  PagedCache cache;
  TensorBuffer seq_lens, gather_lens, table, out;
  megamla_kv_gather_params params;

  Problem(CacheKind kind, int64_t pages, int64_t page_size, int64_t requests, int64_t columns, int64_t m,
          int64_t row_padding = 512)
      : cache(kind, pages, page_size, 32),
        seq_lens(MEGAMLA_I32, {requests}),
        gather_lens(MEGAMLA_I32, {requests}),
        table(MEGAMLA_I32, {requests, columns}, 2),
        out(MEGAMLA_BF16, {requests, m, 512}, row_padding) {
    megamla_kv_gather_init(&params);
    params.cache = cache.view();
    params.seq_lens = seq_lens;
    params.gather_lens = gather_lens;
    params.block_table = table;
    params.out = out;
  }

  // Random rows in every slot, through kv_insert.
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    const int64_t slots = cache.num_slots();
    TensorBuffer latent(MEGAMLA_BF16, {slots, 512});
    TensorBuffer mapping(MEGAMLA_I64, {slots});
    for (int64_t i = 0; i < slots * 512; ++i) latent.as<format::Bf16>()[i] = format::to_bf16(normal(random));
    for (int64_t i = 0; i < slots; ++i) mapping.at<int64_t>(i) = i;
    megamla_kv_insert_params insert;
    megamla_kv_insert_init(&insert);
    insert.latent = latent;
    insert.slot_mapping = mapping;
    insert.cache = cache.view();
    ASSERT_EQ(megamla_kv_insert(&insert, nullptr), MEGAMLA_OK) << megamla_last_error();
  }
};

// The workspace after a gather, from the words of the contract.
std::vector<format::Bf16> expected_rows(const Problem& problem) {
  const auto& p = problem.params;
  std::vector<format::Bf16> expected = problem.out.values<format::Bf16>();
  for (int64_t r = 0; r < p.seq_lens.shape[0]; ++r) {
    const int64_t seq_len = std::max(problem.seq_lens.at<int32_t>(r), 0);
    const bool all = !present(p.gather_lens);
    const int64_t rows = all ? seq_len : std::clamp<int64_t>(problem.gather_lens.at<int32_t>(r), 0, seq_len);
    for (int64_t i = 0; i < rows && p.offset + i < p.out.shape[1]; ++i) {
      const int64_t position = seq_len - rows + i;
      if (position / p.cache.page_size >= p.block_table.shape[1]) continue;
      const int64_t page = problem.table.at<int32_t>(r, position / p.cache.page_size);
      if (page < 0 || page >= p.cache.num_pages) continue;
      const auto bytes = format::slot_bytes(p.cache, page * p.cache.page_size + position % p.cache.page_size);
      float x[512];
      format::decode_row(static_cast<megamla_kv_format>(p.cache.format), bytes.data, bytes.scale, x);
      for (int64_t d = 0; d < 512; ++d) {
        expected[static_cast<size_t>(r * p.out.stride[0] + (p.offset + i) * 512 + d)] = format::to_bf16(x[d]);
      }
    }
  }
  return expected;
}

void check(Problem& problem) {
  problem.out.refill();
  const std::vector<format::Bf16> expected = expected_rows(problem);
  const std::vector<uint8_t> pool = problem.cache.bytes();
  for (const megamla_device device : kDevices) {
    for (const int threads : {1, 3}) {
      problem.out.refill();
      const megamla_exec exec = exec_on(device, threads);
      ASSERT_EQ(megamla_kv_gather(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
      const std::vector<format::Bf16> got = problem.out.values<format::Bf16>();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i].bits, expected[i].bits) << device_name(device) << " " << i;
      EXPECT_TRUE(problem.out.guards_intact());
    }
  }
  EXPECT_TRUE(problem.cache.bytes() == pool);
}

TEST(KvGather, RandomRequestsOfEveryFormatAndLayout) {
  std::mt19937 random(21);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    for (int round = 0; round < 12; ++round) {
      const int64_t page_size = std::vector<int64_t>{1, 4, 32, 61}[random() % 4];
      Problem problem(kind, 1 + below(8), page_size, below(5), below(7), below(90), 512 * below(2));
      problem.fill(random);
      problem.params.offset = below(30);
      if (round % 3 == 0) problem.params.gather_lens = {nullptr, 0, 0, -1, 0, {}, {}};
      const int32_t hostile[] = {-1, INT32_MIN, INT32_MAX, 0};
      const int64_t requests = problem.params.seq_lens.shape[0];
      for (int64_t r = 0; r < requests; ++r) {
        problem.seq_lens.at<int32_t>(r) = random() % 6 == 0 ? hostile[random() % 4] : below(150);
        problem.gather_lens.at<int32_t>(r) = random() % 6 == 0 ? hostile[random() % 4] : below(100);
      }
      for (int64_t i = 0; i < requests * problem.table.view().stride[0]; ++i) {
        const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(problem.params.cache.num_pages)};
        problem.table.as<int32_t>()[i] = random() % 6 == 0 ? bad[random() % 4] : below(problem.params.cache.num_pages);
      }
      check(problem);
    }
  }
}

// Values that a record holds exactly come back bit for bit: insert and gather are each other's inverse there.
TEST(KvGather, ExactValuesSurviveInsertAndGather) {
  for (const CacheKind kind : kCacheKinds) {
    Problem problem(kind, 2, 8, 1, 2, 16, 0);
    TensorBuffer latent(MEGAMLA_BF16, {16, 512});
    TensorBuffer mapping(MEGAMLA_I64, {16});
    const float exact[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    for (int64_t t = 0; t < 16; ++t) {
      mapping.at<int64_t>(t) = t;
      for (int64_t d = 0; d < 512; ++d) {
        const bool largest = d % 16 == 3;  // every scale group sees its largest value
        const float value = largest ? 6.0F : exact[(t * 7 + d * 5) % 8];
        latent.at<format::Bf16>(t, d) = format::to_bf16((t + d) % 3 == 0 && !largest ? -value : value);
      }
    }
    megamla_kv_insert_params insert;
    megamla_kv_insert_init(&insert);
    insert.latent = latent;
    insert.slot_mapping = mapping;
    insert.cache = problem.cache.view();
    problem.seq_lens.fill<int32_t>(16);
    problem.gather_lens.fill<int32_t>(16);
    problem.table.assign<int32_t>({0, 1});
    for (const megamla_device device : kDevices) {
      const megamla_exec exec = exec_on(device);
      ASSERT_EQ(megamla_kv_insert(&insert, &exec), MEGAMLA_OK) << megamla_last_error();
      ASSERT_EQ(megamla_kv_gather(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
      EXPECT_EQ(std::memcmp(problem.out.as<void>(), latent.as<void>(), 16 * 1024), 0) << name_of(kind);
    }
  }
}

// Every code times every scale of each format, NaN codes and scales that leave bf16's range included.
TEST(KvGather, EveryCodeAndScale) {
  for (const CacheKind kind : kCacheKinds) {
    if (kind.layout != MEGAMLA_PAGE_PLANAR) continue;
    Problem problem(kind, 1, 256, 1, 1, 256, 0);
    problem.seq_lens.fill<int32_t>(256);
    problem.gather_lens.fill<int32_t>(256);
    problem.table.fill<int32_t>(0);
    for (int64_t slot = 0; slot < 256; ++slot) {
      const auto bytes = format::slot_bytes(problem.params.cache, slot);
      for (int64_t i = 0; i < format::data_bytes(kind.format); ++i) bytes.data[i] = static_cast<uint8_t>(i + slot * 13);
      for (int64_t i = 0; i < format::scale_bytes(kind.format); ++i)
        bytes.scale[i] = static_cast<uint8_t>(slot + i * 29);
    }
    problem.out.refill();
    const std::vector<format::Bf16> expected = expected_rows(problem);
    for (const megamla_device device : kDevices) {
      problem.out.refill();
      const megamla_exec exec = exec_on(device);
      ASSERT_EQ(megamla_kv_gather(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
      for (int64_t i = 0; i < 256 * 512; ++i) {
        const format::Bf16 got = problem.out.as<format::Bf16>()[i];
        const format::Bf16 want = expected[static_cast<size_t>(i)];
        const bool both_nan = std::isnan(to_float(got)) && std::isnan(to_float(want));
        ASSERT_TRUE(both_nan || got.bits == want.bits)
            << device_name(device) << " " << name_of(kind) << " slot " << i / 512 << " dim " << i % 512;
      }
    }
  }
}

TEST(KvGather, NoRequests) {
  Problem problem(kCacheKinds[0], 1, 8, 0, 2, 8);
  check(problem);
}

TEST(KvGather, BadArguments) {
  using P = megamla_kv_gather_params;
  std::mt19937 random(24);
  Problem problem(kCacheKinds[0], 3, 4, 2, 3, 6);
  problem.params.cache.page_stride -= 32;
  problem.seq_lens.fill<int32_t>(5);
  problem.gather_lens.fill<int32_t>(5);
  problem.table.fill<int32_t>(1);
  BadInput<P> bad("kv_gather", megamla_kv_gather, problem.params, {&problem.out});
  bad.cache("cache", &P::cache);
  bad.tensor("seq_lens", &P::seq_lens, true, 0);
  bad.tensor("gather_lens", &P::gather_lens, false, 0);
  bad.tensor("block_table", &P::block_table, true, 1);
  bad.tensor("out", &P::out, true, 2);
  bad.output("out", &P::out, {&P::seq_lens, &P::gather_lens, &P::block_table});
  bad.expect("out", "the cache's own memory", [](P& p) { p.out.data = p.cache.data; });
  bad.expect("out", "256 columns", [](P& p) { p.out.shape[2] = 256; });
  bad.expect("out", "three requests of two", [](P& p) { p.out.shape[0] = 3; });
  bad.expect("gather_lens", "one request of two", [](P& p) { p.gather_lens.shape[0] = 1; });
  bad.expect("block_table", "one request of two", [](P& p) { p.block_table.shape[0] = 1; });
  bad.expect("offset", "-1", [](P& p) { p.offset = -1; });
}

}  // namespace
}  // namespace megamla::test
