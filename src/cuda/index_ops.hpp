#pragma once

#include "core/status.hpp"
#include "megamla/index_ops.h"

namespace megamla::cuda {

Status topk_to_slots(const megamla_topk_to_slots_params& params, const megamla_exec& exec);
Status combine_topk_swa(const megamla_combine_topk_swa_params& params, const megamla_exec& exec);
Status swa_metadata(const megamla_swa_metadata_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
