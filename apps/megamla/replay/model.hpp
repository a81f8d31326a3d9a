// The layers of a replay over one pool of pages: weights, caches, tables, workspace, one forward per layer and step.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arena.hpp"
#include "gpu.hpp"
#include "model/seeded_layer.hpp"
#include "replay/scheduler.hpp"
#include "replay/step_buffers.hpp"

namespace megamla::replay {

struct ModelOptions {
  std::vector<int64_t> layers;
  std::string weights;  // checkpoint folder; empty: seeded
  uint64_t seed = 4101;
  std::string kv_dtype = "auto";
  int64_t max_model_len = 0;
  bool batch_invariant = false;
  bool verified = false;  // on a GPU the layers are kept in host memory, too
  SchedulerLimits limits;
  megamla_exec exec;
};

class Model {
 public:
  explicit Model(const ModelOptions& options);

  struct Layer {
    int64_t id;
    megamla_layer_config config;
    LayerHandle handle;
    megamla_kv_cache window;
    megamla_kv_cache compressed;  // of its kv source
    megamla_tensor state;
    megamla_tensor cos_sin;
    megamla_tensor y;     // BF16, of the last step
    LayerHandle on_host;  // the same weights, where `handle` is on a GPU and rows are verified

    megamla_layer* reference() const { return on_host != nullptr ? on_host.get() : handle.get(); }
  };
  const std::vector<Layer>& layers() const { return layers_; }
  const io::ModelConfig& config() const { return config_; }

  // x and metadata of a scheduled step; valid until the next call. On a GPU a step of decodes has as many rows as its
  // bucket.
  StepBatch batch(const std::vector<Scheduled>& step);
  // Puts the step of the last batch through every layer; done when it returns. On a GPU a step of decodes is one graph
  // of all layers, recorded once for each bucket.
  void run(const StepBatch& batch);
  // Brings bytes of a buffer (of y, of a cache) from the device to where the views point.
  void fetch(void* begin, int64_t bytes) { arena_.download(begin, bytes); }

  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t pool_bytes() const { return pool_bytes_; }
  int64_t graph_replays() const { return graph_replays_; }
  // Head and retained views, hidden states and results, RoPE tables, compressor state.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  double kv_bytes_per_token() const;
  const megamla_exec& exec() const { return exec_; }
  megamla_workspace* workspace() const { return workspace_.get(); }

 private:
  void make_layers(const ModelOptions& options);
  void load_weights(const ModelOptions& options);
  void make_pool(const ModelOptions& options);
  void make_tables(const ModelOptions& options);
  void warm_up();
  void forward(const Layer& layer, const StepBatch& batch);
  bool on_gpu() const { return exec_.device == MEGAMLA_DEVICE_CUDA; }

  io::ModelConfig config_;
  megamla_exec exec_;
  app::Arena arena_;
  std::vector<Layer> layers_;
  WorkspaceHandle workspace_;
  std::optional<StepBuffers> buffers_;
  std::map<int64_t, app::gpu::Graph> graphs_;  // by rows
  int64_t largest_bucket_ = 0;
  int64_t batch_rows_ = 0;  // of the last batch, if it is a bucket
  int64_t graph_replays_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t pool_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace megamla::replay
