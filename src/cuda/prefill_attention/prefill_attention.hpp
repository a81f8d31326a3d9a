#pragma once

#include "core/status.hpp"
#include "megamla/prefill_attention.h"

namespace megamla::cuda {

Status prefill_attention_supports(const megamla_prefill_attention_params& params);
Status prefill_attention(const megamla_prefill_attention_params& params, const megamla_exec& exec);

}  // namespace megamla::cuda
