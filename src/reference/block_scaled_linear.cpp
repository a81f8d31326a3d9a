#include "reference/block_scaled_linear.hpp"

#include <vector>

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
  for (int64_t i = 0; i < s.in; ++i) {
    if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
      row[i] = format::to_float(data<const format::Bf16>(p.weight)[begin + i]);
      continue;
    }
    const int64_t scale_row = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_ROW_32 ? g * s.out + n : (g * s.out + n) / 32;
    const uint8_t scale = data<const uint8_t>(p.weight_scale)[scale_row * (s.in / 32) + i / 32];
    row[i] = static_cast<double>(format::e4m3_to_float(data<const uint8_t>(p.weight)[begin + i])) *
             format::ue8m0_to_float(scale);
  }
}

// Sixteen partial sums, so that the compiler may use vector registers; the order is fixed.
double dot(const double* a, const double* b, int64_t count) {
  double partial[16] = {};
  for (int64_t i = 0; i < count; i += 16) {
    for (int64_t lane = 0; lane < 16; ++lane) partial[lane] += a[i + lane] * b[i + lane];
  }
  double sum = 0;
  for (const double part : partial) sum += part;
  return sum;
}

}  // namespace

Status block_scaled_linear(const Params& p, const megamla_exec& exec) {
  const plan::LinearShape s = plan::linear_shape(p);
  const int threads = resolve_threads(exec.num_threads);
  std::vector<double> x(static_cast<size_t>(s.tokens * s.in));
  std::vector<double> y(static_cast<size_t>(s.tokens * s.out));
  std::vector<double> rows(static_cast<size_t>(threads * s.in));
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
      double* row = rows.data() + worker * s.in;
      for (int64_t n = begin; n < end; ++n) {
        weight_row(p, s, g, n, row);
        for (int64_t t = 0; t < s.tokens; ++t)
          y[static_cast<size_t>(t * s.out + n)] = dot(row, x.data() + t * s.in, s.in);
      }
    });
    for (int64_t t = 0; t < s.tokens; ++t) {
      const double* values = y.data() + t * s.out;
      if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
        for (int64_t n = 0; n < s.out; n += format::kCastGroup) {
          float group[format::kCastGroup];
          for (int i = 0; i < format::kCastGroup; ++i)
            group[i] = format::round_to_bf16(static_cast<float>(values[n + i]));
          const int64_t column = g * s.out + n;
          at<uint8_t>(p.y_scale, format::f8_128x4_index(s.groups * s.out / 32, t, column / 32)) =
              format::cast_mxfp8_group(group, &at<uint8_t>(p.y, t, column));
        }
        continue;
      }
      const int64_t begin = t * p.y.stride[0] + g * plan::group_stride(p.y);
      for (int64_t n = 0; n < s.out; ++n) {
        if (p.output == MEGAMLA_LINEAR_OUT_F32) {
          data<float>(p.y)[begin + n] = static_cast<float>(values[n]);
        } else {
          data<format::Bf16>(p.y)[begin + n] = format::to_bf16(static_cast<float>(values[n]));
        }
      }
    }
  }
  return {};
}

}  // namespace megamla::reference
