// 32-bit offsets: pools, gathered rows, queries and results whose far end lies beyond 2^31 and 2^32 bytes. The memory
// is address space alone; the truth is the same call over small memory, bit for bit.
#include <gtest/gtest.h>

#include <vector>

#include "support/decode_problem.hpp"
#include "support/far_rows.hpp"
#include "support/insert_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

// Pages of one record: strides of 1280 bytes as in the report, and of 576, whose slot 3,728,270 begins at 2^31 bytes.
constexpr int64_t kStrides[] = {1280, 576};
constexpr int64_t pages_of(int64_t stride) { return (int64_t{1} << 32) / stride + 1000; }
// Both ends, and both sides of 2^31 and 2^32 bytes.
std::vector<int64_t> far_slots(int64_t stride) {
  std::vector<int64_t> slots = {0, pages_of(stride) - 1};
  for (const int64_t boundary : {int64_t{1} << 31, int64_t{1} << 32})
    slots.insert(slots.end(), {boundary / stride - 1, boundary / stride + 1});
  if (stride == 1280) slots.push_back(3277 * 512);
  if (stride == 576) slots.push_back(3728270);
  return slots;
}
bool fits(CacheKind kind, int64_t stride) { return format::record_bytes(kind.format) <= stride; }

// A pool of single-record pages over address space.
struct FarPool {
  SparseMemory memory;
  megamla_kv_cache cache;
  FarPool(CacheKind kind, int64_t stride)
      : memory(pages_of(stride) * stride), cache(describe_cache(kind, memory.data(), pages_of(stride), 1, 0)) {
    cache.page_stride = stride;
  }
};

class FarDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarDecode);

// Copies the records that `slots` names to far slots, and points the list there.
void move_far(const megamla_kv_cache& near, const TensorBuffer& slots, const FarPool& far) {
  const std::vector<int64_t> places = far_slots(far.cache.page_stride);
  const auto kind = static_cast<megamla_kv_format>(near.format);
  for (int64_t t = 0; t < slots.view().shape[0]; ++t) {
    for (int64_t i = 0; i < slots.view().shape[1]; ++i) {
      int32_t& slot = slots.at<int32_t>(t, i);
      if (slot < 0 || slot >= format::num_slots(near)) continue;
      const auto index = static_cast<size_t>(slot) % places.size();
      const auto from = format::slot_bytes(near, slot);
      const auto to = format::slot_bytes(far.cache, places[index]);
      std::copy_n(from.data, format::data_bytes(kind), to.data);
      std::copy_n(from.scale, format::scale_bytes(kind), to.scale);
      slot = static_cast<int32_t>(places[index]);
    }
  }
}

TEST_P(FarDecode, PoolsOfBothCaches) {
  for (const CacheKind kind : kCacheKinds) {
    for (const int64_t stride : kStrides) {
      if (!fits(kind, stride)) continue;
      SCOPED_TRACE(name_of(kind) + " stride " + std::to_string(stride));
      const bool may_be_window = kind.format != MEGAMLA_KV_NVFP4_288;
      DecodeShape shape{.heads = 8, .compressed_width = 20, .window_page = 1, .compressed_page = 1};
      if (may_be_window) shape.window = kind;
      shape.compressed = kind;
      DecodeProblem problem(shape);
      MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
      // As many records as there are far places: a slot of the list names one of them in either pool.
      const auto places = static_cast<int32_t>(far_slots(stride).size());
      for (const auto& [cache, slots] : {std::pair{&problem.window, &problem.window_slots},
                                         std::pair{&problem.compressed, &problem.compressed_slots}}) {
        for (int32_t slot = 0; slot < places; ++slot) problem.write_record(*cache, slot);
        for (int64_t t = 0; t < shape.tokens; ++t) {
          for (int64_t i = 0; i < slots->view().shape[1]; ++i) {
            if (slots->at<int32_t>(t, i) >= 0) slots->at<int32_t>(t, i) %= places;
          }
        }
      }
      expect_ok(run(problem.params));
      const std::vector<uint8_t> near_o = problem.o.bytes();
      const std::vector<uint8_t> near_lse = problem.lse.bytes();
      const FarPool compressed(kind, stride);
      const FarPool window(shape.window, stride);
      move_far(problem.compressed.view(), problem.compressed_slots, compressed);
      problem.params.compressed = compressed.cache;
      if (may_be_window) {
        move_far(problem.window.view(), problem.window_slots, window);
        problem.params.window = window.cache;
      }
      problem.o.refill();
      expect_ok(run(problem.params));
      EXPECT_TRUE(problem.o.bytes() == near_o && problem.lse.bytes() == near_lse);
    }
  }
}

TEST_P(FarDecode, RowsOfQueriesListsAndResults) {
  using P = megamla_decode_attention_params;
  DecodeProblem problem({.tokens = 2, .heads = 8, .compressed_width = 12});
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_same_bits_far_apart(
      problem.params,
      {&P::q, &P::positions, &P::window_slots, &P::window_lens, &P::compressed_slots, &P::compressed_lens},
      {&P::out, &P::lse}, on_gpu(), [&](const P& p) { return run(p); });
}

class FarPrefill : public EveryImplementation<megamla_prefill_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarPrefill);

TEST_P(FarPrefill, GatheredRows) {
  PrefillProblem problem(3, 8, 40, 64, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_ok(run(problem.params));
  const std::vector<uint8_t> near = problem.o.bytes();
  // Row r goes to r * 70000: rows of 1 KiB on both sides of 2^31 and 2^32.
  constexpr int64_t kSpread = 70000;
  const SparseMemory memory((problem.rows * kSpread + 1) * 1024);
  ASSERT_TRUE(memory.ok());
  auto p = problem.params;
  p.kv = host_tensor(memory.data(), MEGAMLA_BF16, {problem.rows * kSpread, 512});
  for (int64_t r = 0; r < problem.rows; ++r)
    std::memcpy(&at<format::Bf16>(p.kv, r * kSpread), &problem.kv.at<format::Bf16>(r, 0), 1024);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    for (int64_t i = 0; i < problem.topk; ++i) {
      int32_t& index = problem.indices.at<int32_t>(t, i);
      if (index >= 0 && index < problem.rows) index *= kSpread;
    }
  }
  problem.o.refill();
  expect_ok(run(p));
  EXPECT_TRUE(problem.o.bytes() == near);
}

class FarInsert : public EveryImplementation<megamla_kv_insert_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarInsert);

TEST_P(FarInsert, RecordsAndNothingBesideThem) {
  for (const CacheKind kind : kCacheKinds) {
    for (const int64_t stride : kStrides) {
      if (!fits(kind, stride)) continue;
      SCOPED_TRACE(name_of(kind) + " stride " + std::to_string(stride));
      const std::vector<int64_t> slots = far_slots(stride);
      const auto count = static_cast<int64_t>(slots.size());
      const FarPool far(kind, stride);
      ASSERT_TRUE(far.memory.ok());
      std::mt19937 random(1);
      InsertProblem problem(kind, count, 1, count, count, MEGAMLA_I64, random);
      problem.identity_slots();
      expect_ok(run(problem.params));
      auto p = problem.params;
      p.cache = far.cache;
      problem.slots.assign(slots);
      expect_ok(run(p));
      for (int64_t i = 0; i < count; ++i) {
        const auto near = format::slot_bytes(problem.cache.view(), i);
        const auto* page = static_cast<const uint8_t*>(far.cache.data) + slots[static_cast<size_t>(i)] * stride;
        const int64_t record = format::record_bytes(kind.format);
        // A page of one record has the same bytes in both layouts.
        EXPECT_TRUE(same_bytes(page, near.data, record)) << "slot " << slots[static_cast<size_t>(i)];
        EXPECT_TRUE(all_zero(page + record, stride - record)) << "behind slot " << slots[static_cast<size_t>(i)];
      }
      EXPECT_TRUE(all_zero(static_cast<const uint8_t*>(far.cache.data) + stride, stride)) << "slot 1";
      EXPECT_TRUE(all_zero(static_cast<const uint8_t*>(far.cache.data) + (pages_of(stride) - 2) * stride, stride));
    }
  }
}

class FarGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarGather);

// The last page of a far pool into the last row of a far workspace.
TEST_P(FarGather, PoolsAndWorkspaces) {
  constexpr int64_t kRows = 2200000;  // of 1 KiB, for each of two requests
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    constexpr int64_t kStride = 1280;
    const std::vector<int64_t> slots = far_slots(kStride);
    const auto count = static_cast<int64_t>(slots.size());
    PagedCache records(kind, count, 1, 0);
    const FarPool far(kind, kStride);
    const SparseMemory workspace(2 * kRows * 1024);
    ASSERT_TRUE(far.memory.ok() && workspace.ok());
    TensorBuffer seq_lens(MEGAMLA_I32, {2});
    TensorBuffer table(MEGAMLA_I32, {2, count});
    seq_lens.fill(static_cast<int32_t>(count));
    std::mt19937_64 random(1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = slots[static_cast<size_t>(i)];
      float x[512];
      for (float& v : x) v = std::normal_distribution<float>()(random);
      const auto record = format::slot_bytes(far.cache, slot);
      format::encode_row(kind.format, x, record.data, record.scale);
      table.at<int32_t>(0, i) = table.at<int32_t>(1, count - 1 - i) = static_cast<int32_t>(slot);
    }
    megamla_kv_gather_params p;
    megamla_kv_gather_init(&p);
    p.cache = far.cache;
    p.seq_lens = seq_lens;
    p.block_table = table;
    p.out = host_tensor(workspace.data(), MEGAMLA_BF16, {2, kRows, 512});
    p.offset = kRows - count;
    expect_ok(run(p));
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < count; ++i) {
        const auto record = format::slot_bytes(far.cache, table.at<int32_t>(r, i));
        float x[512];
        format::decode_row(kind.format, record.data, record.scale, x);
        const auto* row = &at<format::Bf16>(p.out, r, kRows - count + i, 0);
        for (int64_t d = 0; d < 512; ++d) ASSERT_EQ(row[d].bits, format::to_bf16(x[d]).bits) << r << " " << i;
      }
    }
    EXPECT_TRUE(all_zero(static_cast<const uint8_t*>(workspace.data()) + (kRows - count - 1) * 1024, 1024));
  }
}

}  // namespace
}  // namespace megamla::test
