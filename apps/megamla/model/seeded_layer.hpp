// A layer with seeded weights, ready to step: what golden layer cases and replays without a checkpoint use.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "io/model_config.hpp"
#include "io/seeded_weights.hpp"
#include "megamla/layer.h"

namespace megamla {

struct LayerDeleter {
  void operator()(megamla_layer* layer) const { megamla_layer_destroy(layer); }
};
using LayerHandle = std::unique_ptr<megamla_layer, LayerDeleter>;

struct WorkspaceDeleter {
  void operator()(megamla_workspace* workspace) const { megamla_workspace_destroy(workspace); }
};
using WorkspaceHandle = std::unique_ptr<megamla_workspace, WorkspaceDeleter>;

// What the model says of a layer; formats, limits and tensor parallelism stay at their defaults.
megamla_layer_config layer_config(const io::ModelConfig& model, int64_t layer);

// Loads the layer's tensors one by one (a weight with its scale), so that no second copy of all of them is ever held.
// Several layers get the same.
Status load_seeded(std::span<megamla_layer* const> layers, const io::ModelConfig& model, int64_t layer_id,
                   uint64_t seed);
Status load_seeded(megamla_layer* layer, const io::ModelConfig& model, int64_t layer_id, uint64_t seed);

}  // namespace megamla
