#include "reference/block_scaled_linear.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/simd.hpp"
#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "format/small_float.hpp"
#include "plan/linear_shape.hpp"

namespace megamla::reference {
namespace {

using Params = megamla_block_scaled_linear_params;

// Weight rows that are widened at a time, then multiplied with every token: 640 KB of doubles at 5120 columns.
constexpr int64_t kRowBlock = 16;

constexpr auto kE4m3Values = [] {
  std::array<double, 256> values{};
  for (int code = 0; code < 256; ++code) {
    values[static_cast<size_t>(code)] = format::e4m3_to_float(static_cast<uint8_t>(code));
  }
  return values;
}();

double input_value(const Params& p, const plan::LinearShape& s, int64_t t, int64_t g, int64_t i) {
  const int64_t offset = t * p.x.stride[0] + g * plan::group_stride(p.x) + i;
  if (p.input == MEGAMLA_LINEAR_IN_BF16) return format::to_float(data<const format::Bf16>(p.x)[offset]);
  const double code = format::e4m3_to_float(data<const uint8_t>(p.x)[offset]);
  if (p.input == MEGAMLA_LINEAR_IN_MXFP8) {
    return code * format::ue8m0_to_float(data<const uint8_t>(p.x_scale)[format::f8_128x4_index(s.in / 32, t, i / 32)]);
  }
  const format::PackedScale where = format::packed_scale(i / 32);
  const auto word = static_cast<uint32_t>(at<const int32_t>(p.x_scale, t, g, where.word));
  return code * format::ue8m0_to_float(static_cast<uint8_t>(word >> where.shift));
}

void weight_row(const Params& p, const plan::LinearShape& s, int64_t g, int64_t n, double* row) {
  const int64_t begin = (g * s.out + n) * s.in;
  if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
    for (int64_t i = 0; i < s.in; ++i) row[i] = format::to_float(data<const format::Bf16>(p.weight)[begin + i]);
    return;
  }
  const int64_t scale_row = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_ROW_32 ? g * s.out + n : (g * s.out + n) / 32;
  const uint8_t* codes = data<const uint8_t>(p.weight) + begin;
  const uint8_t* scales = data<const uint8_t>(p.weight_scale) + scale_row * (s.in / 32);
  for (int64_t k = 0; k < s.in / 32; ++k) {
    const double scale = format::ue8m0_to_float(scales[k]);
    for (int64_t i = 32 * k; i < 32 * k + 32; ++i) row[i] = kE4m3Values[codes[i]] * scale;
  }
}

// Sums run in sixteen lanes, added up in order at the end: the compiler may use vector registers, and every width of
// them gives the same bits.
constexpr int64_t kLanes = 16;
using Lanes [[gnu::vector_size(kLanes / 2 * sizeof(double))]] = double;  // half of them: a register of AVX-512

// y[r * y_stride + t] = w[r] . x[t] for kRows rows and kTokens tokens, each `count` long: a tile of them, so that a
// value is loaded once for several products.
template <int kRows, int kTokens>
inline __attribute__((always_inline)) void dot_tile(const double* w, const double* x, int64_t count, double* y,
                                                    int64_t y_stride) {
  Lanes sum[kRows * kTokens][2] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
#pragma GCC unroll 8
    for (int tile = 0; tile < kRows * kTokens; ++tile) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Lanes a;
        Lanes b;
        std::memcpy(&a, w + tile / kTokens * count + i + half * kLanes / 2, sizeof(a));
        std::memcpy(&b, x + tile % kTokens * count + i + half * kLanes / 2, sizeof(b));
        sum[tile][half] += a * b;
      }
    }
  }
#pragma GCC unroll 8
  for (int tile = 0; tile < kRows * kTokens; ++tile) {
    double total = 0;
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) total += sum[tile][lane / (kLanes / 2)][lane % (kLanes / 2)];
    y[tile / kTokens * y_stride + tile % kTokens] = total;
  }
}

// y[row * y_stride + token] for all rows and tokens.
MEGAMLA_SIMD_CLONES void dot_rows(const double* w, const double* x, int64_t count, int64_t rows, int64_t tokens,
                                  double* y, int64_t y_stride) {
  for (int64_t t = 0; t < tokens; t += 2) {
    const double* xt = x + t * count;
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      double* to = y + r * y_stride + t;
      t + 2 <= tokens ? dot_tile<4, 2>(w + r * count, xt, count, to, y_stride)
                      : dot_tile<4, 1>(w + r * count, xt, count, to, y_stride);
    }
    for (; r < rows; ++r) {
      double* to = y + r * y_stride + t;
      t + 2 <= tokens ? dot_tile<1, 2>(w + r * count, xt, count, to, y_stride)
                      : dot_tile<1, 1>(w + r * count, xt, count, to, y_stride);
    }
  }
}

}  // namespace

Status block_scaled_linear(const Params& p, const megamla_exec& exec) {
  const plan::LinearShape s = plan::linear_shape(p);
  const int threads = resolve_threads(exec.num_threads);
  std::vector<double> x(static_cast<size_t>(s.tokens * s.in));
  std::vector<double> y(static_cast<size_t>(s.tokens * s.out));  // [out, tokens]
  std::vector<double> rows(static_cast<size_t>(threads * kRowBlock * s.in));
  if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
    for (int64_t i = 0; i < p.y_scale.shape[0]; ++i) at<uint8_t>(p.y_scale, i) = 0;
  }
  for (int64_t g = 0; g < s.groups; ++g) {
    parallel_ranges(s.tokens, threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < s.in; ++i) x[static_cast<size_t>(t * s.in + i)] = input_value(p, s, t, g, i);
      }
    });
    parallel_ranges(s.out, threads, [&](int64_t begin, int64_t end, int worker) {
      double* block = rows.data() + worker * kRowBlock * s.in;
      for (int64_t first = begin; first < end; first += kRowBlock) {
        const int64_t count = std::min(kRowBlock, end - first);
        for (int64_t i = 0; i < count; ++i) weight_row(p, s, g, first + i, block + i * s.in);
        dot_rows(block, x.data(), s.in, count, s.tokens, y.data() + first * s.tokens, s.tokens);
      }
    });
    for (int64_t t = 0; t < s.tokens; ++t) {
      const auto value = [&](int64_t n) { return static_cast<float>(y[static_cast<size_t>(n * s.tokens + t)]); };
      if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
        for (int64_t n = 0; n < s.out; n += format::kCastGroup) {
          float group[format::kCastGroup];
          for (int i = 0; i < format::kCastGroup; ++i) group[i] = format::round_to_bf16(value(n + i));
          const int64_t column = g * s.out + n;
          at<uint8_t>(p.y_scale, format::f8_128x4_index(s.groups * s.out / 32, t, column / 32)) =
              format::cast_mxfp8_group(group, &at<uint8_t>(p.y, t, column));
        }
        continue;
      }
      const int64_t begin = t * p.y.stride[0] + g * plan::group_stride(p.y);
      for (int64_t n = 0; n < s.out; ++n) {
        if (p.output == MEGAMLA_LINEAR_OUT_F32) {
          data<float>(p.y)[begin + n] = value(n);
        } else {
          data<format::Bf16>(p.y)[begin + n] = format::to_bf16(value(n));
        }
      }
    }
  }
  return {};
}

}  // namespace megamla::reference
