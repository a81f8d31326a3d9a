// Strides larger than the page: a block of the pool holds pages of several layers, so that stride = sum of the pages.
// Every layer gets its own bytes, and every other byte of the pool stays as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/decode_problem.hpp"
#include "support/insert_problem.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kBlocks = 20;
constexpr int64_t kPageSize = 61;

// One block after another; in each, a page of every kind of cache, each padded as engines pad it.
class Pool {
 public:
  Pool() : stride_(stride()), memory_(MEGAMLA_U8, {kBlocks * stride_}) {
    for (int64_t i = 0; i < kBlocks * stride_; ++i) memory_.as<uint8_t>()[i] = static_cast<uint8_t>(i * 37 + i / 251);
  }

  megamla_kv_cache layer(size_t index) const {
    int64_t offset = 0;
    for (size_t i = 0; i < index; ++i) offset += page(kCacheKinds[i]);
    megamla_kv_cache cache = describe_cache(kCacheKinds[index], memory_.as<uint8_t>() + offset, kBlocks, kPageSize, 0);
    cache.page_stride = stride_;
    return cache;
  }
  std::vector<uint8_t> bytes() const { return memory_.values<uint8_t>(); }
  bool guards_intact() const { return memory_.guards_intact(); }

 private:
  static int64_t page(CacheKind kind) {
    return format::round_up(format::padded_page_bytes(kind.format, kPageSize), 16);
  }
  static int64_t stride() {
    int64_t sum = 0;
    for (const CacheKind kind : kCacheKinds) sum += page(kind);
    return sum;
  }

  int64_t stride_;
  TensorBuffer memory_;
};

// The record of `from` in `to`.
void copy_record(const megamla_kv_cache& from, const megamla_kv_cache& to, int64_t slot) {
  const auto kind = static_cast<megamla_kv_format>(from.format);
  const auto source = format::slot_bytes(from, slot);
  const auto target = format::slot_bytes(to, slot);
  std::copy_n(source.data, format::data_bytes(kind), target.data);
  std::copy_n(source.scale, format::scale_bytes(kind), target.scale);
}

class SharedPoolInsert : public EveryImplementation<megamla_kv_insert_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(SharedPoolInsert);

TEST_P(SharedPoolInsert, EachLayerWritesItsOwnRecordsAlone) {
  constexpr int64_t kTokens = 200;
  const Pool pool;
  const Pool expected;
  std::mt19937 random(1);
  for (size_t i = 0; i < std::size(kCacheKinds); ++i) {
    SCOPED_TRACE(name_of(kCacheKinds[i]));
    InsertProblem problem(kCacheKinds[i], kBlocks, kPageSize, kTokens, kTokens, MEGAMLA_I64, random);
    std::vector<int64_t> slots(static_cast<size_t>(kBlocks * kPageSize));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random);
    // The last record of the pool's last page is written, too. Swapped, not set: no slot may appear twice.
    std::iter_swap(slots.begin(), std::find(slots.begin(), slots.end(), kBlocks * kPageSize - 1));
    problem.identity_slots();
    for (int64_t t = 0; t < kTokens; ++t) problem.slots.at<int64_t>(t) = slots[static_cast<size_t>(t)];
    expect_ok(run(problem.params));
    for (int64_t t = 0; t < kTokens; ++t)
      copy_record(problem.cache.view(), expected.layer(i), problem.slots.at<int64_t>(t));
    problem.params.cache = pool.layer(i);
    expect_ok(run(problem.params));
    ASSERT_TRUE(pool.bytes() == expected.bytes());
    ASSERT_TRUE(pool.guards_intact());
  }
}

class SharedPoolDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(SharedPoolDecode);

TEST_P(SharedPoolDecode, SameBitsAsFromPrivatePages) {
  for (size_t i = 0; i < std::size(kCacheKinds); ++i) {
    SCOPED_TRACE(name_of(kCacheKinds[i]));
    DecodeShape shape{.tokens = 5, .compressed_width = 130, .window_page = kPageSize, .compressed_page = kPageSize};
    const bool v4 = kCacheKinds[i].format == MEGAMLA_KV_FP8_584;
    const size_t window_layer = v4 ? i : 0;
    shape.window = kCacheKinds[window_layer];
    shape.compressed = kCacheKinds[i];
    DecodeProblem problem(shape);
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    expect_ok(run(problem.params));
    const std::vector<uint8_t> alone = problem.o.bytes();
    // Two pools, since one layer's window and compressed caches have pages of their own.
    const Pool windows;
    const Pool compressed;
    auto p = problem.params;
    const auto move = [](const megamla_kv_cache& from, megamla_kv_cache to) {
      to.num_pages = from.num_pages;
      for (int64_t slot = 0; slot < format::num_slots(from); ++slot) copy_record(from, to, slot);
      return to;
    };
    p.window = move(problem.window.view(), windows.layer(window_layer));
    p.compressed = move(problem.compressed.view(), compressed.layer(i));
    const auto before = std::pair(windows.bytes(), compressed.bytes());
    problem.o.refill();
    expect_ok(run(p));
    EXPECT_TRUE(problem.o.bytes() == alone);
    EXPECT_TRUE(before == std::pair(windows.bytes(), compressed.bytes())) << "a cache was written";
  }
}

class SharedPoolGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(SharedPoolGather);

TEST_P(SharedPoolGather, RowsOfTheLayerAlone) {
  const Pool pool;
  std::mt19937_64 random(2);
  for (size_t i = 0; i < std::size(kCacheKinds); ++i) {
    SCOPED_TRACE(name_of(kCacheKinds[i]));
    const megamla_kv_cache cache = pool.layer(i);
    const auto kind = kCacheKinds[i].format;
    for (int64_t slot = 0; slot < format::num_slots(cache); ++slot) {
      float x[512];
      for (float& v : x) v = std::normal_distribution<float>()(random);
      const auto record = format::slot_bytes(cache, slot);
      format::encode_row(kind, x, record.data, record.scale);
    }
    constexpr int64_t kRows = 3 * kPageSize;
    TensorBuffer seq_lens(MEGAMLA_I32, {2});
    TensorBuffer table(MEGAMLA_I32, {2, 3});
    TensorBuffer out(MEGAMLA_BF16, {2, kRows, 512});
    seq_lens.assign<int32_t>({kRows, kRows - 5});
    table.assign<int32_t>({kBlocks - 1, 0, 7, 3, kBlocks - 1, 12});
    megamla_kv_gather_params p;
    megamla_kv_gather_init(&p);
    p.cache = cache;
    p.seq_lens = seq_lens;
    p.block_table = table;
    p.out = out;
    const std::vector<uint8_t> before = pool.bytes();
    expect_ok(run(p));
    EXPECT_TRUE(pool.bytes() == before) << "a cache was written";
    EXPECT_TRUE(out.guards_intact());
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t row = 0; row < seq_lens.at<int32_t>(r); ++row) {
        const int64_t slot = table.at<int32_t>(r, row / kPageSize) * kPageSize + row % kPageSize;
        const auto record = format::slot_bytes(cache, slot);
        float x[512];
        format::decode_row(kind, record.data, record.scale, x);
        for (int64_t d = 0; d < 512; ++d)
          ASSERT_EQ(out.at<format::Bf16>(r, row, d).bits, format::to_bf16(x[d]).bits) << r << " " << row;
      }
    }
  }
}

}  // namespace
}  // namespace megamla::test
