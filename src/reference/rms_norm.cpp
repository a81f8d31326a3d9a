#include "reference/rms_norm.hpp"

#include <cmath>

#include "core/tensor.hpp"
#include "format/bf16.hpp"

namespace megamla::reference {

Status rms_norm(const megamla_rms_norm_params& p, const megamla_exec&) {
  const int64_t width = p.x.shape[1];
  const auto value = [&](int64_t t, int64_t i) -> double {
    return p.x.dtype == MEGAMLA_F32 ? at<const float>(p.x, t, i) : to_float(at<const format::Bf16>(p.x, t, i));
  };
  for (int64_t t = 0; t < p.x.shape[0]; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += value(t, i) * value(t, i);
    const double mean = squares / static_cast<double>(width) + p.eps;
    const double factor = mean > 0 ? 1 / std::sqrt(mean) : 0;
    for (int64_t i = 0; i < width; ++i) {
      const double weighted = value(t, i) * factor * to_float(at<const format::Bf16>(p.weight, i));
      at<format::Bf16>(p.y, t, i) = format::to_bf16(static_cast<float>(weighted));
    }
  }
  return {};
}

}  // namespace megamla::reference
