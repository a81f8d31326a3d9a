#pragma once

#include "core/status.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla::reference {

Status block_scaled_linear(const megamla_block_scaled_linear_params& params, const megamla_exec& exec);

}  // namespace megamla::reference
