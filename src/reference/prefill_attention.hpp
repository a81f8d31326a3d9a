#pragma once

#include "core/status.hpp"
#include "megamla/prefill_attention.h"

namespace megamla::reference {

Status prefill_attention(const megamla_prefill_attention_params& params, const megamla_exec& exec);

}  // namespace megamla::reference
