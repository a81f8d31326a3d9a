// A call of kv_insert for tests, and the pool that it must leave.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "megamla/kv_insert.h"
#include "support/every_implementation.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {

struct InsertProblem {
  static constexpr int64_t kTableRows = 96;
  PagedCache cache;
  TensorBuffer latent, positions, cos_sin, slots, skipped;
  megamla_kv_insert_params params;

  InsertProblem(CacheKind kind, int64_t pages, int64_t page_size, int64_t tokens, int64_t num_slots,
                megamla_dtype index_type, std::mt19937& random)
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

  void identity_slots() {
    for (int64_t t = 0; t < slots.view().shape[0]; ++t) slots.at<int64_t>(t) = t;
    for (int64_t t = 0; t < positions.view().shape[0]; ++t) set_position(t, t % kTableRows);
  }
  void set_position(int64_t t, int64_t position) {
    if (positions.view().dtype == MEGAMLA_I64) {
      positions.at<int64_t>(t) = position;
    } else {
      positions.at<int32_t>(t) = static_cast<int32_t>(position);
    }
  }
};

struct ExpectedPool {
  std::vector<uint8_t> pool;
  int64_t skipped = 0;
};

// Row after row in order, so that the last of two rows for one slot stays.
inline ExpectedPool expected_pool(const InsertProblem& problem) {
  const auto& p = problem.params;
  ExpectedPool expected{problem.cache.bytes()};
  for (int64_t t = 0; t < std::min(p.latent.shape[0], p.slot_mapping.shape[0]); ++t) {
    const int64_t slot = problem.slots.at<int64_t>(t);
    const bool has_positions = present(p.positions);
    const int64_t position = has_positions ? index_at(p.positions, t) : 0;
    const bool compressed = p.writer == MEGAMLA_WRITER_COMPRESSED;
    if (slot < 0) continue;
    if (compressed && position >= 0 && position % p.compress_ratio != p.compress_ratio - 1) continue;
    const bool needs_position = compressed || present(p.cos_sin);
    if (slot >= problem.cache.num_slots() || (needs_position && position < 0) ||
        (present(p.cos_sin) && position >= InsertProblem::kTableRows)) {
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

}  // namespace megamla::test
