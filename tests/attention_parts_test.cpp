// The parts of the CPU attention whose results are exact or have a bound of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

#include "cpu/attention/key_rows.hpp"
#include "cpu/attention/key_split.hpp"
#include "cpu/attention/products_avx512.hpp"
#include "cpu/attention/softmax.hpp"
#include "support/paged_cache.hpp"

namespace megamla::cpu::attention {
namespace {

std::vector<Multiplier> multipliers() {
  std::vector<Multiplier> all = {Multiplier::kGemmBf16, Multiplier::kGemmF32};
  if (has_avx512_bf16()) all.push_back(Multiplier::kAvx512Bf16);
  return all;
}

TEST(AttentionParts, KeysAreDecodedAsTheFormatSays) {
  std::mt19937_64 random(1);
  for (const test::CacheKind kind : test::kCacheKinds) {
    test::PagedCache cache(kind, 20, 7, 16);
    for (int64_t slot = 0; slot < cache.num_slots(); ++slot) {
      const auto record = format::slot_bytes(cache.view(), slot);
      for (int64_t i = 0; i < format::data_bytes(kind.format); ++i) record.data[i] = static_cast<uint8_t>(random());
      for (int64_t i = 0; i < format::scale_bytes(kind.format); ++i) {
        record.scale[i] = static_cast<uint8_t>(kind.format == MEGAMLA_KV_NVFP4_288 ? random() : 20 + random() % 200);
      }
    }
    const KeySource source{{}, {}, cache.view(), {}};
    std::vector<KeyRef> keys;
    for (int64_t slot = 0; slot < cache.num_slots(); ++slot) keys.push_back(key_at(source, slot));
    const auto count = static_cast<int64_t>(keys.size());
    for (const Multiplier multiplier : multipliers()) {
      std::vector<float> tile(static_cast<size_t>((count + 2) * kKeyStride), 3.0F);
      load_keys(multiplier, keys.data(), count, count + 2, tile.data());
      for (int64_t k = 0; k < count + 2; ++k) {
        float expected[512] = {};  // of the rows that pad the tile
        if (k < count) {
          const auto record = format::slot_bytes(cache.view(), k);
          format::decode_row(kind.format, record.data, record.scale, expected);
        }
        for (int64_t d = 0; d < 512; ++d) {
          const int64_t at = k * kKeyStride + d;
          const float value = multiplier == Multiplier::kGemmF32
                                  ? tile[static_cast<size_t>(at)]
                                  : format::to_float(reinterpret_cast<const format::Bf16*>(tile.data())[at]);
          ASSERT_TRUE(value == expected[d] || (std::isnan(value) && std::isnan(expected[d])))
              << test::name_of(kind) << " key " << k << " dim " << d << ": " << value << " for " << expected[d];
        }
      }
    }
  }
}

TEST(AttentionParts, WeightsArePowersOfTwo) {
  std::mt19937_64 random(3);
  for (const Multiplier multiplier : multipliers()) {
    for (const int64_t count : {1, 15, 16, 17, 160}) {
      std::vector<float> scores(static_cast<size_t>(count));
      for (float& s : scores) s = std::normal_distribution<float>(0, 30)(random);
      const int64_t padded = format::round_up(count, 16);
      std::vector<float> weights(static_cast<size_t>(padded), 9.0F);
      float shift = -FLT_MAX, sum = 0, largest = -std::numeric_limits<float>::infinity();
      const Partial partial{nullptr, &shift, &sum, &largest};
      EXPECT_EQ(weigh_scores(multiplier, scores.data(), count, padded, 0.5F, partial, 0, weights.data()), 0);
      EXPECT_EQ(shift, largest);
      double expected = 0;
      for (int64_t i = 0; i < padded; ++i) {
        const double weight =
            i < count ? std::exp2(static_cast<double>(scores[static_cast<size_t>(i)]) * 0.5 - shift) : 0;
        expected += weight;
        const bool wide = multiplier == Multiplier::kGemmF32;
        const float value = wide ? weights[static_cast<size_t>(i)]
                                 : format::to_float(reinterpret_cast<const format::Bf16*>(weights.data())[i]);
        ASSERT_NEAR(value, weight, weight * (wide ? 3e-6 : 0.004) + 1e-37);
      }
      EXPECT_NEAR(sum, expected, expected * 1e-6);
    }
  }
}

TEST(AttentionParts, SplitsCoverTheKeysOnce) {
  static_assert(num_segments(640) == 2 && segment(640, 0).size() == 320 && num_tiles(320) == 2 &&
                tile(320, 1).size() == 160);
  for (int64_t keys = 1; keys < 6000; ++keys) {
    int64_t next = 0;
    for (int64_t s = 0; s < num_segments(keys); ++s) {
      const KeyRange range = segment(keys, s);
      ASSERT_EQ(range.begin, next);
      ASSERT_TRUE(range.size() > 0 && range.size() <= kSegmentKeys) << keys;
      next = range.end;
      int64_t next_in_segment = 0;
      for (int64_t i = 0; i < num_tiles(range.size()); ++i) {
        const KeyRange part = tile(range.size(), i);
        ASSERT_EQ(part.begin, next_in_segment);
        ASSERT_TRUE(part.size() > 0 && part.size() <= kTileKeys) << keys;
        next_in_segment = part.end;
      }
      ASSERT_EQ(next_in_segment, range.size());
    }
    ASSERT_EQ(next, keys);
  }
}

// Threads take rows as they become free; a row costs its keys. 1 long and 64 short requests, wherever the long one is.
TEST(AttentionParts, OneLongRowAmong64ShortOnesIsNotLeftToTheEnd) {
  constexpr int64_t kRows = 65;
  for (const int64_t long_row : {0, 31, 64}) {
    const auto keys_of = [&](int64_t t) { return t == long_row ? int64_t{128 + 2048} : int64_t{128}; };
    RowOrder order{kRows, 0};
    for (int64_t t = 0; t < kRows; ++t) order.keys += keys_of(t);
    for (const size_t threads : {1, 2, 3, 4}) {
      std::vector<int64_t> busy_until(threads, 0);
      std::vector<int> taken(kRows, 0);
      for (int64_t i = 0; i < order.steps(); ++i) {
        const int64_t t = order.row(i, keys_of);
        if (t < 0) continue;
        ++taken[static_cast<size_t>(t)];
        *std::min_element(busy_until.begin(), busy_until.end()) += keys_of(t);
      }
      EXPECT_EQ(taken, std::vector<int>(kRows, 1));
      const auto last = static_cast<double>(*std::max_element(busy_until.begin(), busy_until.end()));
      EXPECT_LE(last, 1.05 * static_cast<double>(order.keys) / static_cast<double>(threads))
          << threads << " threads, long row " << long_row;
    }
  }
}

}  // namespace
}  // namespace megamla::cpu::attention
