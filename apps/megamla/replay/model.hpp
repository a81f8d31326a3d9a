// The layers of a replay over one pool of pages: weights, caches, tables, workspace, one forward per layer and step.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena.hpp"
#include "model/seeded_layer.hpp"
#include "replay/scheduler.hpp"

namespace megamla::replay {

struct ModelOptions {
  std::vector<int64_t> layers;
  std::string weights;  // checkpoint folder; empty: seeded
  uint64_t seed = 4101;
  std::string kv_dtype = "auto";
  int64_t max_model_len = 0;
  bool batch_invariant = false;
  SchedulerLimits limits;
  megamla_exec exec;
};

// Hidden states and metadata of one step.
struct StepBatch {
  megamla_step_metadata metadata;
  megamla_tensor x;
  int64_t tokens = 0;
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
  };
  const std::vector<Layer>& layers() const { return layers_; }
  const io::ModelConfig& config() const { return config_; }

  // x and metadata of a scheduled step; valid until the next call.
  StepBatch batch(const std::vector<Scheduled>& step);
  // y BF16 [T, hidden] of a layer; valid until its next forward.
  megamla_tensor forward(const Layer& layer, const StepBatch& batch);

  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t pool_bytes() const { return pool_bytes_; }
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

  io::ModelConfig config_;
  megamla_exec exec_;
  int64_t window_;
  app::Arena arena_;
  std::vector<Layer> layers_;
  WorkspaceHandle workspace_;
  uint64_t step_id_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t pool_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  // Buffers of a step at its largest.
  megamla_tensor x_, y_, query_start_loc_, seq_lens_, positions_, slots_, window_table_, compressed_table_,
      state_block_;
  std::vector<megamla_tensor> compressed_slots_;  // index 1 and 2: per ratio
};

// Hidden state of the token at `position` of a request: a function of its prompt block, or of the request where the
// trace names none.
void fill_hidden(const Request& request, int64_t position, int64_t width, uint16_t* row);

}  // namespace megamla::replay
