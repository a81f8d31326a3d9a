#pragma once

#include "core/status.hpp"
#include "megamla/kv_compress.h"

namespace megamla::cpu {

int64_t kv_compress_workspace(const megamla_limits& limits);
Status kv_compress(const megamla_kv_compress_params& params, const megamla_exec& exec);

}  // namespace megamla::cpu
