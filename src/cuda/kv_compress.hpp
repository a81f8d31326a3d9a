#pragma once

#include "core/status.hpp"
#include "megamla/kv_compress.h"

namespace megamla::cuda {

Status kv_compress(const megamla_kv_compress_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
