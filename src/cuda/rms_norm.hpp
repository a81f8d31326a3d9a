#pragma once

#include "core/status.hpp"
#include "megamla/rms_norm.h"

namespace megamla::cuda {

Status rms_norm(const megamla_rms_norm_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
