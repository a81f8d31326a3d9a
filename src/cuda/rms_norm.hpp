#pragma once

#include <cstdint>

#include "core/status.hpp"
#include "megamla/rms_norm.h"

namespace megamla::cuda {

Status rms_norm(const megamla_rms_norm_params& params, const megamla_exec& exec);

// For ops of which it is a part. `written`, a U8 a row, becomes 1; null: not wanted.
Status normalise_rows(const char* op, const megamla_rms_norm_params& params, uint8_t* written, CUstream_st* stream);

}  // namespace megamla::cuda
