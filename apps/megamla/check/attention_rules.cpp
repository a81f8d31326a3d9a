#include "check/attention_rules.hpp"

#include <algorithm>
#include <cmath>

#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "format/small_float.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kDims = 512;
constexpr int64_t kRowChunks = kDims / format::kOChunkDims;  // scale bytes of a (token, head)

struct Tolerance {
  double absolute;  // times max(1, scale)
  double relative;
  double cosine;
};
constexpr Tolerance kFp8{1.1e-3, 1.01 / 8, 1e-3};
constexpr Tolerance kBf16{1.1e-3, 2.01 / 128, 5e-6};

const double* truth_row(const AttentionTruth& truth, int64_t t, int64_t h) {
  return data<const double>(truth.o) + (t * truth.o.shape[1] + h) * kDims;
}

std::string place(int64_t t, int64_t h) { return fmt::format("token {} head {}", t, h); }

// Sums over the whole case for the cosine rule.
struct Cosine {
  double product = 0;
  double squares = 0;
  double truth_squares = 0;

  void add(double got, double ref) {
    product += got * ref;
    squares += got * got + ref * ref;
    truth_squares += ref * ref;
  }
  void judge(const std::string& rule, double bound, Verdict& verdict) const {
    if (truth_squares < 1e-12) return;
    verdict.below(rule, (1 - 2 * product / squares) / bound, "whole case");
  }
};

// Rule 1 of a row; adds to the cosine; returns ||got - ref|| / ||ref||, or 0 for a tiny row.
double compare_row(const AttentionTruth& truth, const Tolerance& tolerance, const std::string& rule, int64_t t,
                   int64_t h, const float* got, Cosine& cosine, Verdict& verdict) {
  const double* ref = truth_row(truth, t, h);
  double worst = 0;
  double error_squares = 0;
  double ref_squares = 0;
  for (int64_t d = 0; d < kDims; ++d) {
    const double error = std::abs(got[d] - ref[d]);
    const double bound = std::max(tolerance.absolute * truth.scale, tolerance.relative * (std::abs(ref[d]) + 1e-6));
    if (std::isnan(error)) {
      worst = error;
      break;
    }
    worst = std::max(worst, error / bound);
    error_squares += error * error;
    ref_squares += ref[d] * ref[d];
    cosine.add(got[d], ref[d]);
  }
  verdict.below(rule, worst, [&] { return place(t, h); });
  return std::sqrt(ref_squares) > 1e-4 ? std::sqrt(error_squares / ref_squares) : 0;
}

// Rule 4: every scale byte within 1 of the expected one.
void compare_scale_bytes(const AttentionTruth& truth, int64_t t, int64_t h, const uint8_t* bytes, Verdict& verdict) {
  const int64_t group = h / format::kGroupHeads;
  for (int64_t c = 0; c < kRowChunks; ++c) {
    const format::PackedScale where = format::packed_scale(c * format::kGroupHeads + h % format::kGroupHeads);
    const auto word =
        static_cast<uint32_t>(at<const int32_t>(truth.scale_words, group, where.word, truth.first_token + t));
    const int expected = static_cast<int>((word >> where.shift) & 0xffU);
    verdict.require("fp8 scale byte", std::abs(int{bytes[c]} - expected) <= 1, [&] {
      return fmt::format("{} chunk {}: expected {}, found {}", place(t, h), c, expected, bytes[c]);
    });
  }
}

bool all_zero(const double* ref) {
  return std::all_of(ref, ref + kDims, [](double x) { return x == 0; });
}

}  // namespace

void dequantise_head(const megamla_tensor& data_tensor, const megamla_tensor& scale, int64_t token, int64_t head,
                     float* values, uint8_t* scale_bytes) {
  const int64_t group = head / format::kGroupHeads;
  const int64_t lane = head % format::kGroupHeads;
  for (int64_t d = 0; d < kDims; ++d) {
    const format::PackedScale where = format::packed_scale(format::o_chunk(lane, d));
    const auto word = static_cast<uint32_t>(at<const int32_t>(scale, token, group, where.word));
    const auto byte = static_cast<uint8_t>(word >> where.shift);
    values[d] = format::e4m3_to_float(at<const uint8_t>(data_tensor, token, group, format::o_chunked_index(lane, d))) *
                format::ue8m0_to_float(byte);
    if (scale_bytes != nullptr) scale_bytes[d / format::kOChunkDims] = byte;
  }
}

void compare_pair(const AttentionTruth& truth, const megamla_tensor& pair, const megamla_tensor& scale,
                  Verdict& verdict) {
  Cosine cosine;
  for (int64_t t = 0; t < truth.o.shape[0]; ++t) {
    for (int64_t h = 0; h < truth.live_heads; ++h) {
      float got[kDims];
      uint8_t bytes[kRowChunks];
      dequantise_head(pair, scale, t, h, got, bytes);
      const double l2 = compare_row(truth, kFp8, "fp8 element", t, h, got, cosine, verdict);
      verdict.below("fp8 L2", l2 / 0.045, [&] { return place(t, h); });
      compare_scale_bytes(truth, t, h, bytes, verdict);
      if (!all_zero(truth_row(truth, t, h))) continue;
      const bool zero = std::all_of(got, got + kDims, [](float x) { return x == 0; });
      verdict.require("zero row", zero, [&] { return place(t, h) + ": data"; });
      const bool floor = std::all_of(bytes, bytes + kRowChunks, [](uint8_t b) { return b == format::kZeroGroupScale; });
      verdict.require("zero row", floor, [&] { return place(t, h) + ": scale bytes"; });
    }
  }
  cosine.judge("fp8 cosine", kFp8.cosine, verdict);
}

void compare_bf16(const AttentionTruth& truth, const megamla_tensor& out, Verdict& verdict) {
  Cosine cosine;
  for (int64_t t = 0; t < truth.o.shape[0]; ++t) {
    for (int64_t h = 0; h < truth.live_heads; ++h) {
      float got[kDims];
      for (int64_t d = 0; d < kDims; ++d) got[d] = format::to_float(at<const format::Bf16>(out, t, h, d));
      compare_row(truth, kBf16, "bf16 element", t, h, got, cosine, verdict);
      if (all_zero(truth_row(truth, t, h))) {
        verdict.require("bf16 zero row", std::all_of(got, got + kDims, [](float x) { return x == 0; }),
                        [&] { return place(t, h); });
      }
    }
  }
  cosine.judge("bf16 cosine", kBf16.cosine, verdict);
}

void compare_lse(const AttentionTruth& truth, const megamla_tensor& lse, const std::string& rule, Verdict& verdict) {
  for (int64_t t = 0; t < truth.lse.shape[0]; ++t) {
    for (int64_t h = 0; h < truth.live_heads; ++h) {
      const double ref = at<const double>(truth.lse, t, h);
      const double got = at<const float>(lse, t, h);
      if (!std::isfinite(ref)) {
        verdict.require(rule, std::isnan(ref) ? std::isnan(got) : got == ref,
                        [&] { return fmt::format("{}: expected {}, found {}", place(t, h), ref, got); });
        continue;
      }
      const double bound = std::max(1e-5 * (1 + std::abs(ref)), 4.01 / 65536 * (std::abs(ref) + 1e-6));
      verdict.below(rule, std::abs(got - ref) / bound,
                    [&] { return fmt::format("{}: expected {}, found {}", place(t, h), ref, got); });
    }
  }
}

}  // namespace megamla::check
