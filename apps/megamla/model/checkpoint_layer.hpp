// A layer's weights from a checkpoint folder.
#pragma once

#include <string>

#include "core/status.hpp"
#include "megamla/layer.h"

namespace megamla {

Status load_checkpoint_layer(megamla_layer* layer, const std::string& folder, int64_t layer_id);

}  // namespace megamla
