// RMSNorm of one row, in double precision.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cpu {

// y = x / sqrt(mean(x^2) + eps) * weight, rounded to bf16 once. The order of the sum is the same for every
// instruction set.
void norm_row(const float* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y);
void norm_row(const format::Bf16* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y);

}  // namespace megamla::cpu
