// Projections on Hopper: FP8 weights stay FP8 in memory and are widened in registers. README.md has the design.
#pragma once

#include "core/status.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla::cuda {

Status block_scaled_linear_supports(const megamla_block_scaled_linear_params& params);
Status block_scaled_linear(const megamla_block_scaled_linear_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
