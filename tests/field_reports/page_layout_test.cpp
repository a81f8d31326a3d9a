// Wrong page layout with equal record sizes: the checker tells planar from interleaved pages on encoded rows, whoever
// encoded them, and says so where the bytes do not tell.
#include "megamla/page_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "format/plausible_group.hpp"
#include "io/safetensors.hpp"
#include "support/insert_problem.hpp"

namespace megamla::test {
namespace {

struct Scores {
  double planar = -1, interleaved = -1;
  int32_t likely = -2;
};
Scores scores_of(const megamla_kv_cache& cache, const std::vector<int64_t>* slots = nullptr) {
  Scores s;
  EXPECT_EQ(megamla_page_layout_scores(&cache, slots == nullptr ? nullptr : slots->data(),
                                       slots == nullptr ? 0 : static_cast<int64_t>(slots->size()), &s.planar,
                                       &s.interleaved, &s.likely),
            MEGAMLA_OK)
      << megamla_last_error();
  return s;
}

class PageLayout : public EveryImplementation<megamla_kv_insert_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(PageLayout);

// Whole and partly filled pages of every size, rows of many magnitudes.
TEST_P(PageLayout, IsToldFromInsertedRows) {
  std::mt19937 random(1);
  for (const CacheKind kind : kCacheKinds) {
    if (kind.format == MEGAMLA_KV_FP8_584) continue;  // planar alone
    for (const int64_t page_size : {2, 16, 32, 61, 64}) {
      for (const int64_t rows : {page_size, page_size / 2, 3 * page_size - 1}) {
        SCOPED_TRACE(name_of(kind) + ", page of " + std::to_string(page_size) + ", " + std::to_string(rows) + " rows");
        InsertProblem problem(kind, 3, page_size, rows, rows, MEGAMLA_I64, random);
        std::vector<uint8_t> blank = problem.cache.bytes();
        std::fill(blank.begin(), blank.end(), uint8_t{0});
        problem.cache.restore(blank);
        problem.identity_slots();
        expect_ok(run(problem.params));
        const Scores all = scores_of(problem.cache.view());
        const std::vector<int64_t> slots = problem.slots.values<int64_t>();
        const Scores named = scores_of(problem.cache.view(), &slots);
        const bool planar = kind.layout == MEGAMLA_PAGE_PLANAR;
        EXPECT_EQ(named.likely, kind.layout) << named.planar << " " << named.interleaved;
        EXPECT_EQ(planar ? named.planar : named.interleaved, 1.0) << "every group fits when it is read right";
        EXPECT_EQ(all.likely, kind.layout) << all.planar << " " << all.interleaved;
      }
    }
  }
}

// The checker's answer does not depend on what the caller believes.
TEST_P(PageLayout, TheClaimedLayoutDoesNotMatter) {
  std::mt19937 random(2);
  InsertProblem problem(kCacheKinds[0], 2, 32, 64, 64, MEGAMLA_I64, random);
  problem.identity_slots();
  expect_ok(run(problem.params));
  megamla_kv_cache wrong = problem.cache.view();
  wrong.layout = MEGAMLA_PAGE_INTERLEAVED;
  EXPECT_EQ(scores_of(wrong).likely, MEGAMLA_PAGE_PLANAR);
}

// Pages that another encoder wrote: the shipped golden files.
TEST(PageLayoutOfGoldenFiles, IsTold) {
  struct Case {
    const char* file;
    CacheKind kind;
    int64_t page_size;
  };
  const Case cases[] = {
      {"kv_insert__swa528_interleaved_p16", {MEGAMLA_KV_FP8_528, MEGAMLA_PAGE_INTERLEAVED}, 16},
      {"kv_insert__compfp4_r2_interleaved_p32", {MEGAMLA_KV_NVFP4_288, MEGAMLA_PAGE_INTERLEAVED}, 32},
  };
  for (const Case& c : cases) {
    const auto file =
        io::SafetensorsFile::open(std::string(MEGAMLA_SOURCE_DIR "/tests/golden/") + c.file + ".safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto view = file.value().view("out.cache");
    const auto mapping = file.value().view("in.slot_mapping");
    const auto positions = file.value().view("in.positions");
    ASSERT_TRUE(view.ok() && mapping.ok() && positions.ok());
    const int64_t pages = view.value().shape[0];
    const int64_t stride = view.value().shape[1];
    // The file's bytes may lie anywhere; a cache is aligned.
    TensorBuffer memory(MEGAMLA_U8, {pages, stride});
    std::memcpy(memory.as<void>(), view.value().data, static_cast<size_t>(pages * stride));
    megamla_kv_cache cache = describe_cache(c.kind, memory.as<void>(), pages, c.page_size, 0);
    cache.page_stride = stride;
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < mapping.value().shape[0]; ++i) {
      const int64_t slot = at<const int64_t>(mapping.value(), i);
      // The compressed file has ratio 2: odd positions close groups.
      const bool written = c.kind.format == MEGAMLA_KV_FP8_528 || at<const int64_t>(positions.value(), i) % 2 == 1;
      if (slot >= 0 && slot < pages * c.page_size && written) slots.push_back(slot);
    }
    ASSERT_GT(slots.size(), 8U);
    const Scores s = scores_of(cache, &slots);
    EXPECT_EQ(s.likely, MEGAMLA_PAGE_INTERLEAVED) << c.file << ": " << s.planar << " " << s.interleaved;
  }
}

TEST(PageLayoutUnknown, BlankPagesSingleRowPagesAndNoise) {
  for (const CacheKind kind : {kCacheKinds[0], kCacheKinds[1]}) {
    PagedCache cache(kind, 4, 32, 0);
    for (const int fill : {0, 0xff}) {
      std::vector<uint8_t> bytes(cache.bytes().size(), static_cast<uint8_t>(fill));
      cache.restore(bytes);
      const Scores s = scores_of(cache.view());
      EXPECT_EQ(s.likely, -1);
      EXPECT_EQ(s.planar + s.interleaved, 0);
    }
    std::vector<uint8_t> noise(cache.bytes().size());
    std::mt19937 random(3);
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    cache.restore(noise);
    EXPECT_EQ(scores_of(cache.view()).likely, -1);
    PagedCache single(kind, 8, 1, 0);  // the same bytes in either layout
    for (int64_t slot = 0; slot < 8; ++slot) {
      float x[512];
      for (float& v : x) v = std::normal_distribution<float>()(random);
      const auto record = format::slot_bytes(single.view(), slot);
      format::encode_row(kind.format, x, record.data, record.scale);
    }
    const Scores s = scores_of(single.view());
    EXPECT_EQ(s.likely, -1);
    EXPECT_EQ(s.planar, 1.0);
    EXPECT_EQ(s.interleaved, 1.0);
  }
}

TEST(PageLayoutUnknown, BadArgumentsAreRefusedByName) {
  PagedCache cache(kCacheKinds[0], 4, 32, 0);
  double planar = 0;
  double interleaved = 0;
  int32_t likely = 0;
  const auto refused = [&](const megamla_kv_cache* c, const int64_t* slots, int64_t count, const char* message) {
    EXPECT_EQ(megamla_page_layout_scores(c, slots, count, &planar, &interleaved, &likely), MEGAMLA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(megamla_last_error()).find(message), std::string::npos) << megamla_last_error();
  };
  const int64_t beyond = 128;
  megamla_kv_cache v4 = cache.view();
  v4.format = MEGAMLA_KV_FP8_584;
  refused(nullptr, nullptr, 0, "page_layout_scores: cache: expected a pointer");
  refused(&cache.view(), &beyond, 1, "page_layout_scores: slots: expected");
  refused(&cache.view(), nullptr, 3, "page_layout_scores: slots: expected a pointer");
  refused(&v4, nullptr, 0, "page_layout_scores: cache");
}

// The encoders' promise that the checker rests on, for rows of every magnitude.
TEST(PlausibleGroup, HoldsForEveryEncodedRow) {
  std::mt19937 random(4);
  for (int round = 0; round < 4000; ++round) {
    float x[512];
    const int exponent = static_cast<int>(random() % 36) - 24;
    for (float& v : x) v = std::ldexp(std::normal_distribution<float>()(random), exponent);
    if (round % 7 == 0) std::fill_n(x, 40, 0.0F);
    const auto check = [&](auto record) {
      using Record = decltype(record);
      uint8_t data[Record::kDataBytes];
      uint8_t scale[Record::kScaleBytes];
      format::encode_row(record, x, data, scale);
      for (int g = 0; g < Record::kScaleBytes; ++g)
        ASSERT_TRUE(format::plausible_group(record, data, scale, g)) << "2^" << exponent << ", group " << g;
    };
    check(format::Fp8_528{});
    check(format::Nvfp4_288{});
  }
}

}  // namespace
}  // namespace megamla::test
