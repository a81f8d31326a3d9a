// How many prefill requests are gathered into the workspace at a time: contract section 8.
#pragma once

#include <cstdint>

#include "megamla/plan.h"

namespace megamla::plan {

// Writes the chunks of valid parameters, at most one per request; returns how many.
int64_t prefill_chunk_plan(const megamla_prefill_chunk_plan_params& params, megamla_prefill_chunk* chunks);

}  // namespace megamla::plan
