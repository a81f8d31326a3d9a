#include "reference/block_scaled_linear.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/line_vector.hpp"
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

// Weight rows and columns that are widened at a time, then multiplied with every token: 16 KB of doubles, in an L1.
constexpr int64_t kRowBlock = 8;
constexpr int64_t kColumnBlock = 256;
// Rows that a thread takes at a time.
constexpr int64_t kThreadRows = 16;

// A group's inputs, a block of columns of every token after the other: rows of whole inputs, often a power of two
// apart, would fall on the same few lines of a cache.
class Inputs {
 public:
  explicit Inputs(const plan::LinearShape& s)
      : tokens_(s.tokens), values_(static_cast<size_t>((s.in + kColumnBlock - 1) / kColumnBlock * block_size())) {}

  double& at(int64_t t, int64_t i) {
    return values_[static_cast<size_t>(i / kColumnBlock * block_size() + t * kColumnBlock + i % kColumnBlock)];
  }
  // Of the columns from `begin` on, a multiple of kColumnBlock; tokens lie kColumnBlock apart.
  const double* block(int64_t begin) const {
    return &values_[static_cast<size_t>(begin / kColumnBlock * block_size())];
  }

 private:
  int64_t block_size() const { return tokens_ * kColumnBlock; }

  int64_t tokens_;
  LineVector<double> values_;
};

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

// out = format::e4m3_to_float(codes) * scale, sixteen of them: the same numbers by way of vectors, since most of a
// small batch's time goes here.
inline __attribute__((always_inline)) void widen_16(const uint8_t* codes, double scale, double* out) {
  constexpr int kCodes = 16;
  using Bits [[gnu::vector_size(kCodes * sizeof(uint32_t))]] = uint32_t;
  using Floats [[gnu::vector_size(kCodes * sizeof(float))]] = float;
  uint32_t code[kCodes];
  for (int i = 0; i < kCodes; ++i) code[i] = codes[i];
  Bits bits;
  std::memcpy(&bits, code, sizeof(bits));
  const Bits sign = bits << 24 & 0x80000000U;
  const Bits magnitude = bits & 0x7f;
  const Floats subnormal = __builtin_convertvector(magnitude, Floats) * 0x1p-9F;
  const Bits normal = (magnitude << 20) + (120U << 23);
  bits = magnitude < 8 ? reinterpret_cast<Bits>(subnormal) : normal;
  bits = (magnitude == 0x7f ? normal | 0x7fc00000U : bits) | sign;
  float values[kCodes];
  std::memcpy(values, &bits, sizeof(values));
  for (int i = 0; i < kCodes; ++i) out[i] = values[i] * scale;
}

// `ahead`: bytes from the codes to those that are wanted next.
MEGAMLA_SIMD_CLONES void widen_row(const uint8_t* codes, const uint8_t* scales, int64_t count, int64_t ahead,
                                   double* out) {
  for (int64_t k = 0; k < count; k += 32) {
    __builtin_prefetch(codes + k + ahead);
    const double scale = format::ue8m0_to_float(scales[k / 32]);
    for (int64_t i = k; i < k + 32; i += 16) widen_16(codes + i, scale, out + i);
  }
}

// Columns begin .. begin + count - 1 of row n of group g.
void widen_weights(const Params& p, const plan::LinearShape& s, int64_t g, int64_t n, int64_t begin, int64_t count,
                   double* out) {
  const int64_t row = g * s.out + n;
  if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
    const format::Bf16* values = data<const format::Bf16>(p.weight) + row * s.in + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = format::to_float(values[i]);
    return;
  }
  const int64_t scale_row = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_ROW_32 ? row : row / 32;
  const int64_t ahead = begin + count < s.in ? kColumnBlock : kRowBlock * s.in - begin;
  widen_row(data<const uint8_t>(p.weight) + row * s.in + begin,
            data<const uint8_t>(p.weight_scale) + scale_row * (s.in / 32) + begin / 32, count, ahead, out);
}

// A sum runs in eight lanes, added up in order at the end: the compiler may use vector registers, and every width of
// them gives the same bits.
constexpr int64_t kLanes = 8;
using Lanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;

inline __attribute__((always_inline)) void load(const double* from, Lanes* lanes) {
  std::memcpy(lanes, from, sizeof(*lanes));
}

// sums[r * sum_stride + t] += w[r] . x[t], in lanes, for four weight rows and kTokens tokens: a tile of them, so that a
// value is loaded once for several products. Rows of w and of x lie kColumnBlock apart.
template <int kTokens>
inline __attribute__((always_inline)) void add_tile(const double* w, const double* x, int64_t columns, double* sums,
                                                    int64_t sum_stride) {
  constexpr int kRows = 4;
  Lanes sum[kRows * kTokens];
  const auto place = [&](int i) { return sums + (i / kTokens * sum_stride + i % kTokens) * kLanes; };
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kTokens; ++i) load(place(i), &sum[i]);
  for (int64_t k = 0; k < columns; k += kLanes) {
    Lanes weights[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) load(w + r * kColumnBlock + k, &weights[r]);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      Lanes value;
      load(x + t * kColumnBlock + k, &value);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r * kTokens + t] += weights[r] * value;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kTokens; ++i) std::memcpy(place(i), &sum[i], sizeof(Lanes));
}

// sums[row * tokens + token] += w[row] . x[token] for a block of rows, a multiple of four, and all tokens.
MEGAMLA_SIMD_CLONES void add_products(const double* w, const double* x, int64_t columns, int64_t rows, int64_t tokens,
                                      double* sums) {
  for (int64_t t = 0; t < tokens; t += 4) {
    for (int64_t r = 0; r < rows; r += 4) {
      const double* wr = w + r * kColumnBlock;
      const double* xt = x + t * kColumnBlock;
      double* to = sums + (r * tokens + t) * kLanes;
      switch (std::min<int64_t>(tokens - t, 4)) {
        case 1:
          add_tile<1>(wr, xt, columns, to, tokens);
          break;
        case 2:
          add_tile<2>(wr, xt, columns, to, tokens);
          break;
        case 3:
          add_tile<3>(wr, xt, columns, to, tokens);
          break;
        default:
          add_tile<4>(wr, xt, columns, to, tokens);
      }
    }
  }
}

// A thread's share of the work: y[n * tokens + t] for rows first .. first + count - 1 of group g.
class RowBlock {
 public:
  RowBlock(const Params& p, const plan::LinearShape& s)
      : p_(p), s_(s), weights_(kRowBlock * kColumnBlock), sums_(static_cast<size_t>(kRowBlock * s.tokens * kLanes)) {}

  void multiply(int64_t g, int64_t first, int64_t count, const Inputs& x, double* y) {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    const int64_t whole = (count + 3) / 4 * 4;  // rows that are not there leave sums that nobody reads
    for (int64_t begin = 0; begin < s_.in; begin += kColumnBlock) {
      const int64_t columns = std::min(kColumnBlock, s_.in - begin);
      for (int64_t r = 0; r < count; ++r) {
        widen_weights(p_, s_, g, first + r, begin, columns, weights_.data() + r * kColumnBlock);
      }
      add_products(weights_.data(), x.block(begin), columns, whole, s_.tokens, sums_.data());
    }
    for (int64_t i = 0; i < count * s_.tokens; ++i) {
      double total = 0;
      for (int lane = 0; lane < kLanes; ++lane) total += sums_[static_cast<size_t>(i * kLanes + lane)];
      y[first * s_.tokens + i] = total;
    }
  }

 private:
  const Params& p_;
  const plan::LinearShape& s_;
  LineVector<double> weights_;  // [kRowBlock, kColumnBlock]
  LineVector<double> sums_;     // [kRowBlock, tokens, kLanes]
};

// Token t's results of group g, from y [out, tokens].
void write_results(const Params& p, const plan::LinearShape& s, int64_t g, int64_t t, const double* y) {
  const auto value = [&](int64_t n) { return static_cast<float>(y[n * s.tokens + t]); };
  if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
    for (int64_t n = 0; n < s.out; n += format::kCastGroup) {
      float group[format::kCastGroup];
      for (int i = 0; i < format::kCastGroup; ++i) group[i] = format::round_to_bf16(value(n + i));
      const int64_t column = g * s.out + n;
      at<uint8_t>(p.y_scale, format::f8_128x4_index(s.groups * s.out / 32, t, column / 32)) =
          format::cast_mxfp8_group(group, &at<uint8_t>(p.y, t, column));
    }
    return;
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

}  // namespace

Status block_scaled_linear(const Params& p, const megamla_exec& exec) {
  const plan::LinearShape s = plan::linear_shape(p);
  const int threads = resolve_threads(exec.num_threads);
  std::vector<double> y(static_cast<size_t>(s.tokens * s.out));  // [out, tokens]
  std::vector<RowBlock> blocks(static_cast<size_t>(threads), RowBlock(p, s));
  if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
    for (int64_t i = 0; i < p.y_scale.shape[0]; ++i) at<uint8_t>(p.y_scale, i) = 0;
  }
  if (s.tokens == 0) return {};  // no row to point into
  Inputs x(s);
  for (int64_t g = 0; g < s.groups; ++g) {
    parallel_ranges(s.tokens, threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < s.in; ++i) x.at(t, i) = input_value(p, s, t, g, i);
      }
    });
    parallel_items((s.out + kThreadRows - 1) / kThreadRows, threads, [&](int64_t i, int worker) {
      const int64_t end = std::min((i + 1) * kThreadRows, s.out);
      for (int64_t first = i * kThreadRows; first < end; first += kRowBlock) {
        blocks[static_cast<size_t>(worker)].multiply(g, first, std::min(kRowBlock, end - first), x, y.data());
      }
    });
    parallel_ranges(s.tokens, threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) write_results(p, s, g, t, y.data());
    });
  }
  return {};
}

}  // namespace megamla::reference
