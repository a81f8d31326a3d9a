// Warm-up registration: each distinct kernel variant is run once per process, however many layers share it.
#pragma once

#include "core/status.hpp"
#include "layer/step.hpp"
#include "megamla/layer.h"

namespace megamla::layer {

// Runs, once per process, a step of one padded token through each attention variant that the config selects. It takes
// the first token of the views.
Status register_variants(const megamla_layer_config& config, const StepViews& views, const megamla_exec& exec);
int64_t variant_count();
Status small_step_support(const megamla_layer_config& config, megamla_device device);

}  // namespace megamla::layer
