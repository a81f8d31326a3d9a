#include "plan/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace megamla::plan {

std::array<double, 32> rope_inverse_frequencies(const megamla_rope_table_params& params) {
  constexpr int kDims = 64;
  const auto correction_dim = [&](double rotations) {
    return kDims * std::log(params.original_max_position / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(params.theta));
  };
  double low = 0;
  double high = 1;
  if (params.factor != 1) {
    low = std::max(std::floor(correction_dim(params.beta_fast)), 0.0);
    high = std::min(std::ceil(correction_dim(params.beta_slow)), kDims - 1.0);
    if (high <= low) high = low + 0.001;  // a step instead of a ramp
  }
  std::array<double, 32> inv_freq{};
  for (int j = 0; j < 32; ++j) {
    const double base = std::pow(params.theta, -2.0 * j / kDims);
    const double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
    inv_freq[static_cast<size_t>(j)] = params.factor == 1 ? base : base * ((1 - ramp) + ramp / params.factor);
  }
  return inv_freq;
}

void rope_row(const std::array<double, 32>& inv_freq, int64_t position, megamla_rope_angles angles, float* cos_sin) {
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    double angle = static_cast<double>(position) * inv_freq[j];
    if (angles == MEGAMLA_ROPE_FP32) angle = static_cast<float>(position) * static_cast<float>(inv_freq[j]);
    cos_sin[j] = static_cast<float>(std::cos(angle));
    cos_sin[inv_freq.size() + j] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace megamla::plan
