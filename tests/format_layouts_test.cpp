// Layouts: chunked queries and outputs, packed and swizzled scales, pages, and the rotation of a pair.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "format/chunked.hpp"
#include "format/page.hpp"
#include "format/rope.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {
namespace {

using namespace format;

// The loops list the elements in the order in which they lie in memory, so each index is the next number.
TEST(Chunked, QueryElementsFollowEachOther) {
  for (const int64_t heads : {8, 16, 24, 32, 64, 128}) {
    int64_t next = 0;
    for (int64_t chunk = 0; chunk < 32; ++chunk) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t j = 0; j < 16; ++j) ASSERT_EQ(q_chunked_index(heads, h, chunk * 16 + j), next++);
      }
    }
    EXPECT_EQ(next, heads * kHeadDim);
  }
}

TEST(Chunked, OutputElementsFollowEachOther) {
  int64_t next = 0;
  for (int64_t c = 0; c < 16; ++c) {
    for (int64_t lane_head = 0; lane_head < 8; ++lane_head) {
      EXPECT_EQ(o_chunk(lane_head, 32 * c), c * 8 + lane_head);
      EXPECT_EQ(o_chunk(lane_head, 32 * c + 31), c * 8 + lane_head);
      for (int64_t j = 0; j < 32; ++j) ASSERT_EQ(o_chunked_index(lane_head, 32 * c + j), next++);
    }
  }
  EXPECT_EQ(next, kGroupWidth);
}

TEST(PackedScales, FourChunksToAWordLowByteFirst) {
  std::vector<uint32_t> words(kGroupScaleWords);
  for (int64_t chunk = 0; chunk < kGroupChunks; ++chunk) {
    const PackedScale where = packed_scale(chunk);
    ASSERT_LT(where.word, kGroupScaleWords);
    words[static_cast<size_t>(where.word)] |= static_cast<uint32_t>(chunk) << where.shift;
  }
  for (uint32_t w = 0; w < words.size(); ++w) EXPECT_EQ(words[w], 0x03020100U + w * 0x04040404U);
}

TEST(F8_128x4, BytesFollowEachOther) {
  for (const int64_t rows : {1, 31, 32, 33, 127, 128, 129, 300}) {
    for (const int64_t columns : {1, 3, 4, 5, 8, 32, 130}) {
      const int64_t row_tiles = (rows + 127) / 128;
      const int64_t column_tiles = (columns + 3) / 4;
      int64_t next = 0;
      for (int64_t tile = 0; tile < row_tiles * column_tiles; ++tile) {
        for (int64_t byte = 0; byte < 512; ++byte) {
          const int64_t m = tile / column_tiles * 128 + byte % 16 / 4 * 32 + byte / 16;
          const int64_t k = tile % column_tiles * 4 + byte % 4;
          ASSERT_EQ(f8_128x4_index(columns, m, k), next++) << rows << " x " << columns << ": " << m << ", " << k;
        }
      }
      EXPECT_EQ(f8_128x4_size(rows, columns), next);
    }
  }
  EXPECT_EQ(f8_128x4_size(0, 8), 0);
  EXPECT_GT(f8_128x4_index(256, int64_t{1} << 31, 255), int64_t{1} << 38);
}

TEST(Pages, RecordsFillAPageWithoutOverlap) {
  for (const CacheKind kind : kCacheKinds) {
    for (const int64_t page_size : {1, 2, 32, 53, 61, 64, 69, 128}) {
      SCOPED_TRACE(name_of(kind) + ", " + std::to_string(page_size));
      const PagedCache cache(kind, 3, page_size, 48);
      std::vector<int> owner(static_cast<size_t>(3 * cache.view().page_stride), -1);
      const auto* base = static_cast<const uint8_t*>(cache.view().data);
      for (int slot = 0; slot < 3 * page_size; ++slot) {
        const auto bytes = slot_bytes(cache.view(), slot);
        const auto claim = [&](const uint8_t* begin, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            const int64_t at = begin + i - base;
            ASSERT_EQ(at / cache.view().page_stride, slot / page_size);
            ASSERT_EQ(std::exchange(owner[static_cast<size_t>(at)], slot), -1);
          }
        };
        claim(bytes.data, data_bytes(kind.format));
        claim(bytes.scale, scale_bytes(kind.format));
      }
      for (size_t i = 0; i < owner.size(); ++i) {
        const int64_t within = static_cast<int64_t>(i) % cache.view().page_stride;
        ASSERT_EQ(owner[i] >= 0, within < page_bytes(kind.format, page_size)) << i;
      }
    }
  }
}

TEST(Pages, PlanarAndInterleavedOrder) {
  const PageGeometry planar = page_geometry(MEGAMLA_KV_FP8_584, MEGAMLA_PAGE_PLANAR, 53);
  EXPECT_EQ(planar.data_step, 576);
  EXPECT_EQ(planar.scale_begin, 53 * 576);
  EXPECT_EQ(planar.scale_step, 8);
  const PageGeometry interleaved = page_geometry(MEGAMLA_KV_NVFP4_288, MEGAMLA_PAGE_INTERLEAVED, 53);
  EXPECT_EQ(interleaved.data_step, 288);
  EXPECT_EQ(interleaved.scale_begin, 256);
  EXPECT_EQ(interleaved.scale_step, 288);
}

TEST(Pages, PaddedAsInTheEngine) {
  EXPECT_EQ(padded_page_bytes(MEGAMLA_KV_FP8_528, 32), 16896);
  EXPECT_EQ(padded_page_bytes(MEGAMLA_KV_FP8_528, 53), 28160);
  EXPECT_EQ(padded_page_bytes(MEGAMLA_KV_NVFP4_288, 64), 18432);
  EXPECT_EQ(padded_page_bytes(MEGAMLA_KV_NVFP4_288, 53), 15360);
  EXPECT_EQ(padded_page_bytes(MEGAMLA_KV_FP8_584, 64), 37440);
  for (const CacheKind kind : kCacheKinds) EXPECT_EQ(padded_page_bytes(kind.format, 7) % 16, 0);
}

// Pages on both sides of 2^31 and 2^32 bytes.
TEST(Pages, OffsetsBeyond32Bits) {
  for (const CacheKind kind : kCacheKinds) {
    for (const int64_t page_size : {int64_t{1}, int64_t{53}}) {
      const SparseMemory pool(int64_t{5} << 30);
      ASSERT_TRUE(pool.ok());
      megamla_kv_cache cache = describe_cache(kind, pool.data(), 0, page_size, 0);
      cache.num_pages = (int64_t{5} << 30) / cache.page_stride;
      for (const int64_t edge : {int64_t{1} << 31, int64_t{1} << 32}) {
        for (int64_t page = edge / cache.page_stride - 1; page <= edge / cache.page_stride + 1; ++page) {
          for (const int64_t row : {int64_t{0}, page_size - 1}) {
            const auto bytes = slot_bytes(cache, page * page_size + row);
            const bool planar = kind.layout == MEGAMLA_PAGE_PLANAR;
            const int64_t data = data_bytes(kind.format);
            const int64_t scale = scale_bytes(kind.format);
            const int64_t begin = page * cache.page_stride;
            const auto* base = static_cast<const uint8_t*>(cache.data);
            EXPECT_EQ(bytes.data - base, begin + row * (planar ? data : data + scale));
            EXPECT_EQ(bytes.scale - base,
                      begin + (planar ? page_size * data + row * scale : row * (data + scale) + data));
          }
        }
      }
    }
  }
  megamla_kv_cache huge{};
  huge.num_pages = int64_t{1} << 31;
  huge.page_size = 128;
  EXPECT_EQ(num_slots(huge), int64_t{1} << 38);
}

// With all values in [1, 2) every sum of an exact and a rounded product fits a double, so that one conversion rounds
// once, as an fma does.
TEST(Rope, OneRoundedProductAndOneFma) {
  std::mt19937 random(3);
  const auto draw = [&] { return bit_cast<float>(0x3f800000U | (static_cast<uint32_t>(random()) & 0x7fffffU)); };
  int other_orders_differ = 0;
  for (int i = 0; i < 20000; ++i) {
    const Pair x = {draw(), draw()};
    const float c = draw();
    const float s = draw();
    const auto exact = [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); };
    const auto rounded = [&](float a, float b) { return static_cast<double>(static_cast<float>(exact(a, b))); };
    const Pair forth = rotate(x, c, s);
    ASSERT_EQ(forth.x0, static_cast<float>(exact(x.x0, c) - rounded(x.x1, s)));
    ASSERT_EQ(forth.x1, static_cast<float>(exact(x.x0, s) + rounded(x.x1, c)));
    const Pair back = rotate_back(x, c, s);
    ASSERT_EQ(back.x0, static_cast<float>(exact(x.x0, c) + rounded(x.x1, s)));
    ASSERT_EQ(back.x1, static_cast<float>(rounded(x.x1, c) - exact(x.x0, s)));
    other_orders_differ += forth.x1 != static_cast<float>(rounded(x.x0, s) + rounded(x.x1, c));
  }
  EXPECT_GT(other_orders_differ, 1000);
}

TEST(Rope, BackAgain) {
  for (int i = 0; i < 100; ++i) {
    const auto angle = static_cast<float>(i) * 0.37F;
    const Pair x = {1.5F - static_cast<float>(i), 0.25F * static_cast<float>(i)};
    const Pair y = rotate_back(rotate(x, std::cos(angle), std::sin(angle)), std::cos(angle), std::sin(angle));
    EXPECT_NEAR(y.x0, x.x0, 3e-5);
    EXPECT_NEAR(y.x1, x.x1, 3e-5);
  }
}

}  // namespace
}  // namespace megamla::test
