// Prefix caching: pages shared by requests, windows that begin before the chunk, bounded replay. Indices decide what is
// read, nothing assumes a ring or an owner of a page.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "support/decode_problem.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kPage = 32;
constexpr int64_t kWindow = 128;
constexpr int64_t kPrefix = 96;   // tokens of three shared pages
constexpr int64_t kLength = 150;  // of each request
constexpr int64_t kChunk = 10;    // its last tokens are the step's
constexpr int64_t kColumns = 5;   // pages of a request
constexpr int64_t kPages = 16;

// Requests 0 and 1 share the prefix's pages; request 2 has the same tokens as request 1 on pages of its own.
const std::vector<int32_t> kTable = {4, 9, 1, 0, 2, 4, 9, 1, 7, 3, 15, 6, 11, 14, 8};

struct Step {
  TensorBuffer start{MEGAMLA_I32, {4}}, seq_lens{MEGAMLA_I32, {3}}, mapping{MEGAMLA_I64, {3 * kChunk}},
      table{MEGAMLA_I32, {3, kColumns}}, replay{MEGAMLA_I32, {3}}, valid{MEGAMLA_U8, {3 * kChunk}},
      request{MEGAMLA_I32, {3 * kChunk}}, slots{MEGAMLA_I32, {3 * kChunk, kWindow}}, lens{MEGAMLA_I32, {3 * kChunk}},
      gather_lens{MEGAMLA_I32, {0}};
  megamla_swa_metadata_params params;

  Step() {
    start.assign<int32_t>({0, kChunk, 2 * kChunk, 3 * kChunk});
    seq_lens.fill<int32_t>(kLength);
    table.assign(kTable);
    for (int64_t t = 0; t < 3 * kChunk; ++t) mapping.at<int64_t>(t) = slot(t / kChunk, position(t));
    megamla_swa_metadata_init(&params);
    params.query_start_loc = start;
    params.seq_lens = seq_lens;
    params.slot_mapping = mapping;
    params.block_table = table;
    params.page_size = kPage;
    params.num_pages = kPages;
    params.window = kWindow;
    params.num_decodes = 3;
    params.causal = 1;
    params.is_valid_token = valid;
    params.token_to_req = request;
    params.decode_swa_indices = slots;
    params.decode_swa_lens = lens;
    params.prefill_gather_lens = gather_lens;
  }
  static int64_t position(int64_t t) { return kLength - kChunk + t % kChunk; }
  static int64_t slot(int64_t r, int64_t p) {
    return int64_t{kTable[static_cast<size_t>(r * kColumns + p / kPage)]} * kPage + p % kPage;
  }
};

class PrefixWindow : public EveryImplementation<megamla_swa_metadata_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(PrefixWindow);

TEST_P(PrefixWindow, ListsFollowTheTables) {
  Step step;
  for (const bool bounded : {false, true}) {
    if (bounded) {
      step.replay.assign<int32_t>({0, 40, 145});
      step.params.replay_start = step.replay;
    }
    expect_ok(run(step.params));
    for (int64_t t = 0; t < 3 * kChunk; ++t) {
      const int64_t r = t / kChunk;
      int64_t first = std::max<int64_t>(0, Step::position(t) - kWindow + 1);
      if (bounded) first = std::max<int64_t>(first, step.replay.at<int32_t>(r));
      const int64_t length = std::max<int64_t>(Step::position(t) - first + 1, 0);
      ASSERT_EQ(step.lens.at<int32_t>(t), length) << t;
      for (int64_t i = 0; i < kWindow; ++i)
        ASSERT_EQ(step.slots.at<int32_t>(t, i), i < length ? Step::slot(r, first + i) : -1) << t << " " << i;
    }
  }
}

class PrefixDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(PrefixDecode);

TEST_P(PrefixDecode, SharedPagesGiveTheBitsOfPrivateOnes) {
  for (const bool bounded : {false, true}) {
    Step step;
    if (bounded) {
      step.replay.fill<int32_t>(60);
      step.params.replay_start = step.replay;
    }
    expect_ok(run_reference(step.params));
    DecodeShape shape{.tokens = 3 * kChunk, .heads = 16, .window_width = kWindow, .window_page = kPage};
    DecodeProblem problem(shape);
    PagedCache cache(shape.window, kPages, kPage, 64);
    std::vector<uint8_t> nan = cache.bytes();
    std::fill(nan.begin(), nan.end(), uint8_t{0xff});
    cache.restore(nan);
    for (int64_t p = bounded ? 60 : 0; p < kLength; ++p) {  // before the replay's start nothing was ever written
      for (int64_t r = 0; r < 2; ++r) {
        if (r == 1 || p >= kPrefix) problem.write_record(cache, Step::slot(r, p));
      }
      const auto from = format::slot_bytes(cache.view(), Step::slot(1, p));
      const auto to = format::slot_bytes(cache.view(), Step::slot(2, p));
      std::copy_n(from.data, format::data_bytes(shape.window.format), to.data);
      std::copy_n(from.scale, format::scale_bytes(shape.window.format), to.scale);
    }
    auto p = problem.params;
    p.window = cache.view();
    p.window_slots = step.slots;
    p.window_lens = step.lens;
    p.batch_invariant = 1;
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
    for (int64_t t = 0; t < 3 * kChunk; ++t) {
      problem.positions.at<int64_t>(t) = t % kChunk;
      std::memcpy(&problem.q.at<format::Bf16>(t, 0), &problem.q.at<format::Bf16>(t % kChunk, 0), 16 * 1024);
    }
    expect_ok(run(p));
    const int64_t bytes = kChunk * 16 * 2048;
    EXPECT_TRUE(same_bytes(&problem.o.at<float>(kChunk, 0, 0), &problem.o.at<float>(2 * kChunk, 0, 0), bytes));
    EXPECT_FALSE(same_bytes(&problem.o.at<float>(0, 0, 0), &problem.o.at<float>(kChunk, 0, 0), bytes)) << "other tails";
    for (const float o : problem.o.values<float>()) ASSERT_TRUE(std::isfinite(o));
  }
}

class PrefixGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(PrefixGather);

// The window before the chunk and the chunk, from shared pages and from private copies.
TEST_P(PrefixGather, SharedPagesGiveTheSameRows) {
  for (const CacheKind kind : kCacheKinds) {
    SCOPED_TRACE(name_of(kind));
    PagedCache cache(kind, kPages, kPage, 32);
    std::mt19937_64 random(1);
    for (int64_t p = 0; p < kLength; ++p) {
      float x[512];
      for (float& v : x) v = std::normal_distribution<float>()(random);
      for (int64_t r = 1; r < 3; ++r) {
        const auto record = format::slot_bytes(cache.view(), Step::slot(r, p));
        format::encode_row(kind.format, x, record.data, record.scale);
      }
    }
    Step step;
    constexpr int64_t kRows = kWindow - 1 + kChunk;
    TensorBuffer gather_lens(MEGAMLA_I32, {3});
    TensorBuffer out(MEGAMLA_BF16, {3, kRows, 512});
    gather_lens.fill<int32_t>(kRows);
    megamla_kv_gather_params p;
    megamla_kv_gather_init(&p);
    p.cache = cache.view();
    p.seq_lens = step.seq_lens;
    p.gather_lens = gather_lens;
    p.block_table = step.table;
    p.out = out;
    expect_ok(run(p));
    EXPECT_TRUE(same_bytes(&out.at<format::Bf16>(1, 0), &out.at<format::Bf16>(2, 0), kRows * 1024));
    // Requests 0 and 1 agree as far as their prefix goes.
    constexpr int64_t kCommon = kPrefix - (kLength - kRows);
    EXPECT_TRUE(same_bytes(&out.at<format::Bf16>(0, 0), &out.at<format::Bf16>(1, 0), kCommon * 1024));
    EXPECT_FALSE(same_bytes(&out.at<format::Bf16>(0, kCommon), &out.at<format::Bf16>(1, kCommon), 1024));
  }
}

}  // namespace
}  // namespace megamla::test
