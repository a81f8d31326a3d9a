#pragma once

#include "core/status.hpp"
#include "megamla/output_cast.h"

namespace megamla::cuda {

Status output_cast(const megamla_output_cast_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
