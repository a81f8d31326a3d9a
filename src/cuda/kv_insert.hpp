#pragma once

#include "core/status.hpp"
#include "megamla/kv_insert.h"

namespace megamla::cuda {

Status kv_insert(const megamla_kv_insert_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
