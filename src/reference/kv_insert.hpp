#pragma once

#include "core/status.hpp"
#include "megamla/kv_insert.h"

namespace megamla::reference {

Status kv_insert(const megamla_kv_insert_params& params, const megamla_exec& exec);

}  // namespace megamla::reference
