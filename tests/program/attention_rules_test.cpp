// The attention rules on made-up results: what the golden files cannot plant, since it is in the result and not in the
// file (NaN, a scale byte of a zero row, bytes outside the slice).
#include "check/attention_rules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/output_pair.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kTokens = 3;
constexpr int64_t kHeads = 16;
constexpr int64_t kDims = 512;
constexpr int64_t kZeroToken = 2;
constexpr uint8_t kFillByte = 0x5a;
constexpr int32_t kFillWord = 0x5a5a5a5a;

class AttentionRules : public testing::Test {
 protected:
  AttentionRules() {
    truth.o = arena.tensor(MEGAMLA_F64, {kTokens, kHeads, kDims});
    truth.lse = arena.tensor(MEGAMLA_F64, {kTokens, kHeads});
    truth.live_heads = kHeads;
    pair = make_output_pair(arena, kTokens, kHeads / 8, kFillByte, kFillWord);
    bf16 = arena.tensor(MEGAMLA_BF16, {kTokens, kHeads, kDims});
    lse = arena.tensor(MEGAMLA_F32, {kTokens, kHeads});
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) fill_head(t, h);
    }
    // The expected words are those of the pair itself: A = 4, so the memory is [G, 32, 4].
    truth.scale_words = host_tensor(arena.bytes(kHeads / 8 * 32 * 4 * 4), MEGAMLA_I32, {kHeads / 8, 32, 4});
    std::copy_n(data<int32_t>(pair.scale), count_of(truth.scale_words), data<int32_t>(truth.scale_words));
  }

  // Truth, and a result that is the truth rounded once.
  void fill_head(int64_t t, int64_t h) {
    float o[kDims];
    for (int64_t d = 0; d < kDims; ++d) {
      const double exact = t == kZeroToken ? 0 : std::sin(static_cast<double>(d + 17 * h + 31 * t)) / (h + 1.0);
      at<double>(truth.o, t, h, d) = exact;
      at<format::Bf16>(bf16, t, h, d) = format::to_bf16(static_cast<float>(exact));
      o[d] = static_cast<float>(exact);
    }
    for (int64_t c = 0; c < kDims / 32; ++c) {
      const int64_t chunk = format::o_chunk(h % 8, c * 32);
      uint8_t* codes = &at<uint8_t>(pair.data, t, h / 8, chunk * 32);
      const uint8_t byte = format::cast_output_group(o + c * 32, codes);
      set_scale(t, h, c, byte);
    }
    at<double>(truth.lse, t, h) = t == kZeroToken ? std::numeric_limits<double>::infinity() : 3.5 + 0.01 * h;
    at<float>(lse, t, h) = static_cast<float>(at<double>(truth.lse, t, h));
  }

  void set_scale(int64_t t, int64_t h, int64_t c, uint8_t byte) {
    const format::PackedScale where = format::packed_scale(format::o_chunk(h % 8, c * 32));
    auto& word = at<int32_t>(pair.scale, t, h / 8, where.word);
    const auto cleared = static_cast<uint32_t>(word) & ~(0xffU << where.shift);
    word = static_cast<int32_t>(cleared | (uint32_t{byte} << where.shift));
  }

  // "" or what failed first.
  std::string judged() {
    Verdict verdict;
    compare_pair(truth, pair.data, pair.scale, verdict);
    compare_bf16(truth, bf16, verdict);
    compare_lse(truth, lse, "lse", verdict);
    return verdict.failure();
  }
  void expect_failure(const std::string& rule_and_place) {
    EXPECT_EQ(judged().rfind(rule_and_place, 0), 0U) << judged();
  }

  app::Arena arena;
  AttentionTruth truth;
  OutputPair pair;
  megamla_tensor bf16{}, lse{};
};

TEST_F(AttentionRules, TruthRoundedOnceHolds) { EXPECT_EQ(judged(), ""); }

TEST_F(AttentionRules, NanCodeInThePair) {
  at<uint8_t>(pair.data, 1, 1, 77) = 0x7f;
  expect_failure("fp8 element: token 1 head 10");  // chunk 2 of the group is lane 2
}

TEST_F(AttentionRules, NanInBf16) {
  at<format::Bf16>(bf16, 0, 3, 100) = format::to_bf16(std::nanf(""));
  expect_failure("bf16 element: token 0 head 3: NaN");
}

TEST_F(AttentionRules, NanLse) {
  at<float>(lse, 1, 2) = std::nanf("");
  expect_failure("lse: token 1 head 2");
}

TEST_F(AttentionRules, InfiniteLseMustStayInfinite) {
  at<float>(lse, kZeroToken, 0) = 1e30F;
  expect_failure("lse: token 2 head 0: expected inf");
}

TEST_F(AttentionRules, ZeroRowKeepsTheFloorOfTheScale) {
  set_scale(kZeroToken, 5, 3, 106);  // data 0: the values are right, the byte is not
  expect_failure("zero row: token 2 head 5: scale bytes");
}

TEST_F(AttentionRules, ZeroRowHasNoTinyValue) {
  at<uint8_t>(pair.data, kZeroToken, 0, 0) = 1;  // 2^-9 * 2^-22
  expect_failure("zero row: token 2 head 0: data");
}

TEST_F(AttentionRules, ZeroRowOfBf16HasNoTinyValue) {
  at<format::Bf16>(bf16, kZeroToken, 0, 0) = format::to_bf16(1e-30F);
  expect_failure("bf16 zero row: token 2 head 0");
}

TEST_F(AttentionRules, ScaleTwoExponentsOff) {
  truth.scale = 1e6;  // so wide that only the exponent can fail
  const format::PackedScale where = format::packed_scale(format::o_chunk(0, 0));
  const auto byte = static_cast<uint8_t>(static_cast<uint32_t>(at<int32_t>(pair.scale, 0, 0, where.word)));
  set_scale(0, 0, 0, static_cast<uint8_t>(byte + 1));
  EXPECT_EQ(judged().find("scale byte"), std::string::npos) << judged();
  set_scale(0, 0, 0, static_cast<uint8_t>(byte + 2));
  Verdict verdict;
  compare_pair(truth, pair.data, pair.scale, verdict);
  EXPECT_FALSE(verdict.rules().find("fp8 scale byte")->second.holds);
}

TEST_F(AttentionRules, NothingOutsideTheSliceIsTouched) {
  const auto judge = [&](int64_t live_groups) {
    Verdict verdict;
    require_untouched(verdict, "outside", pair, 0, kTokens, live_groups, kFillByte, kFillWord);
    return verdict.failure();
  };
  EXPECT_EQ(judge(2), "");
  data<int32_t>(pair.scale)[3] = 0;  // the pad column of group 0, word 0
  EXPECT_EQ(judge(2), "outside: scale word of column 3 group 0 was written");
  data<int32_t>(pair.scale)[3] = kFillWord;
  EXPECT_EQ(judge(1), "outside: data of token 0 group 1 was written");
}

}  // namespace
}  // namespace megamla::check
