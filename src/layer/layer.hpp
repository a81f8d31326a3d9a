// MegaAttentionLayer: include/megamla/layer.h tells what it is; the data flow is in forward.cpp, attention in
// segments.cpp.
#pragma once

#include "layer/config.hpp"
#include "layer/step.hpp"
#include "layer/weights.hpp"
#include "ops/side_stream.hpp"

namespace megamla::layer {

class MegaAttentionLayer {
 public:
  MegaAttentionLayer(const megamla_layer_config& config, megamla_device device);

  // Before the first step.
  Status prepare() { return side_stream_.prepare(cuda_device_); }
  Status load(std::span<const megamla_named_tensor> tensors) { return loader_.load(tensors); }
  Status forward(const megamla_forward_params& params, const megamla_exec& exec) const;
  Status workspace_size(megamla_device device, int64_t num_threads, int64_t* bytes) const;

  const megamla_layer_config& config() const { return config_; }
  const WeightLoader& loader() const { return loader_; }

 private:
  struct Run;  // one forward call: parameters, plan, views

  // The device that a call runs on; refused unless the layer's weights are where it reads.
  Status device_of(const megamla_forward_params& params, const megamla_exec& exec, megamla_device* device) const;
  Status warm_up(const megamla_forward_params& params, const megamla_exec& exec) const;
  Status project_hidden(Run& run) const;
  Status project_query(Run& run) const;
  Status write_window(Run& run) const;
  bool writes_compressed(const Run& run) const;
  Status project_compressor(Run& run) const;
  Status write_compressed(Run& run) const;
  Status list_keys(Run& run) const;
  Status prefill_segment(Run& run) const;
  Status prefill_chunk(Run& run, size_t index) const;
  Status gather_chunk(Run& run, size_t index, const megamla_tensor& rows, bool compressed_intact) const;
  Status decode_segment(Run& run, int64_t begin, int64_t end) const;
  Status project_out(Run& run) const;
  Status fill_padding(Run& run) const;
  Status reduce(Run& run) const;

  megamla_layer_config config_;
  int32_t cuda_device_;  // of weights and steps; -1: the host
  int64_t heads_;
  int64_t groups_;
  WeightLoader loader_;
  ops::SideStream side_stream_;
};

}  // namespace megamla::layer

struct megamla_layer : megamla::layer::MegaAttentionLayer {
  using megamla::layer::MegaAttentionLayer::MegaAttentionLayer;
};
