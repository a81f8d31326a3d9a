#pragma once

#include "core/status.hpp"
#include "megamla/decode_attention.h"

namespace megamla::reference {

Status decode_attention(const megamla_decode_attention_params& params, const megamla_exec& exec);

}  // namespace megamla::reference
