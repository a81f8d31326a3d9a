// A layer's forward on buffers of an arena: its views moved to where the device reads them.
#pragma once

#include "arena.hpp"
#include "megamla/layer.h"

namespace megamla::app {

// Views as megamla_layer_forward takes them, from views of an arena's buffers in host memory, and the program's side
// stream. Copies nothing between the two memories: Arena::upload and download do.
class LayerCall {
 public:
  LayerCall(const megamla_forward_params& call, Arena& arena);
  LayerCall(const LayerCall&) = delete;
  LayerCall& operator=(const LayerCall&) = delete;

  const megamla_forward_params& params() const { return params_; }

 private:
  megamla_forward_params params_;
  megamla_step_metadata metadata_{};
  megamla_layer_taps taps_{};
};

// The same view of an arena's buffer, for an op of the CPU.
inline megamla_tensor on_host(megamla_tensor view) {
  view.cuda_device = -1;
  return view;
}
inline megamla_kv_cache on_host(megamla_kv_cache view) {
  view.cuda_device = -1;
  return view;
}

}  // namespace megamla::app
