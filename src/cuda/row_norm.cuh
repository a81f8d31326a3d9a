// The arithmetic that RMSNorm needs wherever it is done: in double precision, so that a row is rounded once.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cuda {

__device__ inline double warp_sum(double value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// 1 / sqrt(mean + eps), to a unit or two in the last place of a double; 0 for a row of zeros with eps 0.
__device__ inline double norm_factor(double squares, double inverse_width, float eps) {
  const double mean = squares * inverse_width + static_cast<double>(eps);
  return mean > 0 ? rsqrt(mean) : 0;
}

__device__ inline float normalised(float x, double factor, float weight) {
  return static_cast<float>(x * factor * static_cast<double>(weight));
}

}  // namespace megamla::cuda
