// decode_attention on Hopper: one launch from q to the output pair. See README.md here for the bound and the shapes.
#pragma once

#include "core/status.hpp"
#include "megamla/decode_attention.h"

namespace megamla::cuda {

int64_t decode_attention_workspace(const megamla_limits& limits);
Status decode_attention_supports(const megamla_decode_attention_params& p);
Status decode_attention(const megamla_decode_attention_params& p, const megamla_exec& exec);

}  // namespace megamla::cuda
