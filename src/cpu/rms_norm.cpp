#include "cpu/rms_norm.hpp"

#include <cmath>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "format/bf16.hpp"

namespace megamla::cpu {
namespace {

float load(float x) { return x; }
float load(format::Bf16 x) { return format::to_float(x); }

template <class T>
void norm_row(const T* x, const megamla_tensor& weight, int64_t width, float eps, format::Bf16* y) {
  // Eight double partial sums: the compiler may keep them in vector registers, and their order is fixed.
  double partial[8] = {};
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      const double value = load(x[i + lane]);
      partial[lane] += value * value;
    }
  }
  for (; i < width; ++i) partial[0] += static_cast<double>(load(x[i])) * load(x[i]);
  double squares = 0;
  for (const double sum : partial) squares += sum;
  const double mean = squares / static_cast<double>(width) + eps;
  const double factor = mean > 0 ? 1 / std::sqrt(mean) : 0;
  for (int64_t d = 0; d < width; ++d) {
    const double weighted = load(x[d]) * factor * format::to_float(at<const format::Bf16>(weight, d));
    y[d] = format::to_bf16(static_cast<float>(weighted));
  }
}

}  // namespace

Status rms_norm(const megamla_rms_norm_params& p, const megamla_exec& exec) {
  parallel_ranges(p.x.shape[0], resolve_threads(exec.num_threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      format::Bf16* y = &at<format::Bf16>(p.y, t, 0);
      if (p.x.dtype == MEGAMLA_F32) {
        norm_row(&at<const float>(p.x, t, 0), p.weight, p.x.shape[1], p.eps, y);
      } else {
        norm_row(&at<const format::Bf16>(p.x, t, 0), p.weight, p.x.shape[1], p.eps, y);
      }
    }
  });
  return {};
}

}  // namespace megamla::cpu
