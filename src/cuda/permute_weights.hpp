#pragma once

#include "core/status.hpp"
#include "megamla/permute_weights.h"

namespace megamla::cuda {

Status permute_weights(const megamla_permute_weights_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
