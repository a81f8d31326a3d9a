#pragma once

#include "core/status.hpp"
#include "megamla/rope_table.h"

namespace megamla::cuda {

Status rope_table(const megamla_rope_table_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
