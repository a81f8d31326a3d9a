// The state of one forward call, shared by forward.cpp and segments.cpp.
#pragma once

#include "layer/call.hpp"
#include "layer/layer.hpp"

namespace megamla::layer {

struct MegaAttentionLayer::Run {
  const megamla_forward_params& params;
  const megamla_step_metadata& metadata;
  megamla_exec exec;  // with the device resolved and the op workspace
  megamla_exec side;  // the same for what may run beside it
  Workspace& workspace;
  Step step;
  StepViews views;

  const megamla_layer_taps* taps() const { return params.taps; }
  // What wo_b writes, all T rows: y, unless its rows are scattered afterwards.
  const megamla_tensor& y_part() const { return params.reduce == MEGAMLA_REDUCE_SCATTER ? views.y_part : params.y; }
  // Rows of this step that are not padding, of any per-token tensor.
  megamla_tensor real(const megamla_tensor& t) const { return slice(t, 0, step.real_tokens); }
  // A tap's token slice, or absent.
  megamla_tensor lse_slice(int64_t begin, int64_t end) const {
    return taps() != nullptr && present(taps()->lse) ? slice(taps()->lse, begin, end) : megamla_tensor{};
  }
};

}  // namespace megamla::layer
