// Projections on the CPU: FP8 weights stay FP8 in memory; each thread widens a panel of weight rows that its L2 holds,
// multiplies it with all tokens of a block through oneDNN, and writes the results out. A few tokens (dots) read the
// codes straight into registers instead: such a step is bound by memory. A result's bits depend on its row and token
// block alone.
#pragma once

#include "core/status.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla::cpu {

Status block_scaled_linear_dots_supports(const megamla_block_scaled_linear_params& params);
Status block_scaled_linear_bf16_supports(const megamla_block_scaled_linear_params& params);
int64_t block_scaled_linear_bf16_workspace(const megamla_limits& limits);  // dots, too
int64_t block_scaled_linear_f32_workspace(const megamla_limits& limits);
Status block_scaled_linear_dots(const megamla_block_scaled_linear_params& params, const megamla_exec& exec);
Status block_scaled_linear_bf16(const megamla_block_scaled_linear_params& params, const megamla_exec& exec);
Status block_scaled_linear_f32(const megamla_block_scaled_linear_params& params, const megamla_exec& exec);

}  // namespace megamla::cpu
