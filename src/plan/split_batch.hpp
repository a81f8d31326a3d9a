// Which requests of a step are decodes: contract section 8.
#pragma once

#include <cstdint>
#include <span>

#include "megamla/plan.h"

namespace megamla::plan {

// Requests before the first query longer than `threshold` are decodes, all from it on prefills. query_lens are >= 0.
megamla_batch_split split_batch(std::span<const int32_t> query_lens, int64_t threshold);

}  // namespace megamla::plan
