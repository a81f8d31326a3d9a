#pragma once

#include "core/status.hpp"
#include "megamla/kv_gather.h"

namespace megamla::cuda {

Status kv_gather(const megamla_kv_gather_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
