// The model's geometry (contract section 1), as config.json states it under `text_config`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.hpp"

namespace megamla::io {

struct ModelConfig {
  int64_t hidden_size = 5120;
  int64_t num_hidden_layers = 40;
  int64_t num_attention_heads = 64;
  int64_t head_dim = 512;
  int64_t qk_rope_head_dim = 64;
  int64_t q_lora_rank = 1280;
  int64_t o_lora_rank = 1024;
  int64_t o_groups = 8;
  int64_t sliding_window = 128;
  int64_t index_topk = 512;
  double rms_norm_eps = 1e-20;
  std::vector<int64_t> compress_ratios;         // one per layer, draft layers after the others
  std::vector<int64_t> kv_source_layer_ids;     // ascending, layers with a ratio above 0
  std::vector<int64_t> index_source_layer_ids;  // ascending
  double rope_theta = 10000;                    // layers of ratio 0
  double compress_rope_theta = 160000;          // layers with compressed keys, with YaRN:
  double rope_factor = 16;
  double original_max_position_embeddings = 65536;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t max_position_embeddings = 1048576;

  // -1 for a layer that the model does not have.
  int64_t compress_ratio(int64_t layer) const;
  // The largest kv source id <= layer; -1 if there is none.
  int64_t kv_source_of(int64_t layer) const;
  int64_t index_source_of(int64_t layer) const;
  // Every field within what a layer can be; the message names field, expected and found.
  Status validate() const;
};

// DeepSeek-V4.1-Flash: 40 layers and 3 draft layers.
ModelConfig deepseek_v41_flash();

Result<ModelConfig> read_model_config(const std::string& path);
// The text of a config.json that reads back as `config`.
std::string model_config_text(const ModelConfig& config);
Status write_model_config(const ModelConfig& config, const std::string& path);

}  // namespace megamla::io
