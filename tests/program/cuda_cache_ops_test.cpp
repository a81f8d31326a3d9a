// kv_insert and kv_gather on a GPU against the reference: the same bytes in the whole pool, also where nothing may be
// written. Skipped on a machine without a GPU that the kernels run on.
#include <algorithm>
#include <numeric>

#include "format/page.hpp"
#include "support/gpu_problem.hpp"

namespace megamla::test {
namespace {

// Distinct slots, with hostile ones between them.
void fill_slots(const megamla_tensor& slots, int64_t num_slots, std::mt19937_64& random) {
  std::vector<int64_t> free_slots(static_cast<size_t>(num_slots));
  std::iota(free_slots.begin(), free_slots.end(), 0);
  std::shuffle(free_slots.begin(), free_slots.end(), random);
  const int64_t hostile[] = {-1, INT64_MIN, num_slots, INT64_MAX, int64_t{1} << 32};
  for (int64_t i = 0; i < slots.shape[0]; ++i) {
    const bool bad = random() % 8 == 0 || free_slots.empty();
    at<int64_t>(slots, i) = bad ? hostile[random() % 5] : free_slots.back();
    if (!bad) free_slots.pop_back();
  }
}

api::KvInsert insert_problem(Problem& problem, CacheKind kind, int64_t tokens, int64_t page_size, int64_t row_padding,
                             std::mt19937_64& random) {
  constexpr int64_t kTableRows = 96;
  api::KvInsert p;
  p.cache = problem.cache(kind, tokens / page_size + 2, page_size, 48);
  p.latent = problem.tensor(MEGAMLA_BF16, {tokens, 512}, row_padding);
  fill_bf16(p.latent, random);
  p.positions = problem.tensor(random() % 2 == 0 ? MEGAMLA_I64 : MEGAMLA_I32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t position = static_cast<int64_t>(random() % (kTableRows + 4)) - 2;
    if (p.positions.dtype == MEGAMLA_I64) at<int64_t>(p.positions, t) = position;
    if (p.positions.dtype == MEGAMLA_I32) at<int32_t>(p.positions, t) = static_cast<int32_t>(position);
  }
  p.cos_sin = problem.tensor(MEGAMLA_F32, {kTableRows, 64}, row_padding);
  fill_table(p.cos_sin);
  p.slot_mapping = problem.tensor(MEGAMLA_I64, {tokens});
  fill_slots(p.slot_mapping, format::num_slots(p.cache), random);
  p.skipped_rows = problem.tensor(MEGAMLA_I64, {1});
  p.writer = static_cast<int32_t>(random() % 2);
  p.compress_ratio = 1 + static_cast<int32_t>(random() % 2);
  return p;
}

TEST_F(CudaOps, KvInsert) {
  for (const CacheKind kind : kCacheKinds) {
    for (const int64_t tokens : {0, 1, 7, 300, 9001}) {
      for (const int64_t row_padding : {0, 8, 5}) {
        SCOPED_TRACE(name_of(kind) + " " + std::to_string(tokens) + " rows, padding " + std::to_string(row_padding));
        Problem problem;
        problem.check(insert_problem(problem, kind, tokens, any(1, 70), row_padding, random_));
      }
    }
  }
}

// Values of every size, exact ties of the codes among them, and values that are not finite.
TEST_F(CudaOps, KvInsertEveryBf16) {
  for (const CacheKind kind : kCacheKinds) {
    for (const bool shuffled : {false, true}) {
      for (const int64_t rows : {128, 8320}) {  // there are two kernels, and it is the last rows that are written
        SCOPED_TRACE(name_of(kind) + " " + std::to_string(rows) + " rows");
        Problem problem;
        api::KvInsert p;
        p.latent = problem.tensor(MEGAMLA_BF16, {rows, 512});
        auto* values = data<uint16_t>(p.latent) + (rows - 128) * 512;
        std::iota(values, values + 65536, uint16_t{0});
        if (shuffled) std::shuffle(values, values + 65536, random_);
        p.cache = problem.cache(kind, 4, 32, 0);
        p.slot_mapping = problem.tensor(MEGAMLA_I64, {rows});
        for (int64_t r = 0; r < rows; ++r) at<int64_t>(p.slot_mapping, r) = r - (rows - 128);
        problem.check(p);
      }
    }
  }
}

api::KvGather gather_problem(Problem& problem, CacheKind kind, int64_t requests, int64_t rows, int64_t page_size,
                             std::mt19937_64& random) {
  api::KvGather p;
  const int64_t columns = rows / page_size + 1;
  p.cache = problem.cache(kind, columns + 3, page_size, 48);
  auto* bytes = static_cast<uint8_t*>(p.cache.data);
  for (int64_t i = 0; i < p.cache.num_pages * p.cache.page_stride; ++i) {
    bytes[i] = static_cast<uint8_t>(random());
    if ((bytes[i] & 0x7f) == 0x7f) bytes[i] ^= 1;  // NaN codes: their bits are the device's own
  }
  p.seq_lens = problem.tensor(MEGAMLA_I32, {requests});
  p.gather_lens = problem.tensor(MEGAMLA_I32, {requests});
  p.block_table = problem.tensor(MEGAMLA_I32, {requests, columns}, 3);
  const auto any = [&](int64_t low, int64_t high) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(low, high)(random));
  };
  fill<int32_t>(p.seq_lens, [&] { return any(-2, rows); });
  fill<int32_t>(p.gather_lens, [&] { return any(-2, rows + 5); });
  fill<int32_t>(p.block_table, [&] { return any(-1, p.cache.num_pages); });
  return p;
}

TEST_F(CudaOps, KvGather) {
  for (const CacheKind kind : kCacheKinds) {
    for (const int64_t rows : {0, 1, 33, 4000}) {
      for (const int64_t row_padding : {0, 5}) {
        SCOPED_TRACE(name_of(kind) + " " + std::to_string(rows) + " rows, padding " + std::to_string(row_padding));
        Problem problem;
        const int64_t requests = any(1, 4);
        api::KvGather p = gather_problem(problem, kind, requests, rows, any(1, 70), random_);
        if (rows % 2 == 1) p.gather_lens = megamla_tensor{};
        p.offset = any(0, 9);
        p.out = problem.tensor(MEGAMLA_BF16, {requests, rows + 4, 512}, row_padding);
        problem.check(p);
      }
    }
  }
}

// Pages that begin beyond 2^31 and 2^32 bytes.
TEST_F(CudaOps, FarPages) {
  for (const CacheKind kind : {kCacheKinds[0], kCacheKinds[1]}) {
    Problem problem;
    api::KvInsert p = insert_problem(problem, kind, 6, 2, 0, random_);
    p.cache.num_pages = 3;
    p.cache.page_stride = (int64_t{1} << 31) + 16;
    megamla_tensor pool = problem.tensor(MEGAMLA_U8, {2 * p.cache.page_stride + 4096});
    p.cache.data = pool.data;
    for (int64_t i = 0; i < 6; ++i) at<int64_t>(p.slot_mapping, i) = 5 - i;
    problem.check(p);
  }
}

}  // namespace
}  // namespace megamla::test
