// The arithmetic that RMSNorm needs wherever it is done: in double precision, as the reference does it, so that a row
// is rounded once.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cuda {

__device__ inline double warp_sum(double value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// rsqrt(mean + eps); 0 for a row of zeros with eps 0.
__device__ inline double norm_factor(double squares, int64_t width, float eps) {
  const double mean = squares / static_cast<double>(width) + static_cast<double>(eps);
  return mean > 0 ? 1 / sqrt(mean) : 0;
}

__device__ inline format::Bf16 normalised(float x, double factor, format::Bf16 weight) {
  return format::to_bf16(static_cast<float>(x * factor * static_cast<double>(to_float(weight))));
}

}  // namespace megamla::cuda
