// A Hugging Face checkpoint folder: config.json, model.safetensors.index.json (or one model.safetensors), shards. Only
// the shards that hold an asked-for layer are opened, and of them only that layer's pages are read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "io/model_config.hpp"
#include "io/safetensors.hpp"

namespace megamla::io {

struct LayerTensor {
  std::string name;  // without "layers.N.attn."
  megamla_tensor view;
};

// Views stay valid as long as the LayerTensors object.
struct LayerTensors {
  std::vector<SafetensorsFile> shards;
  std::vector<LayerTensor> tensors;
};

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& folder);

  const ModelConfig& config() const { return config_; }
  // Shard file of every tensor, by full name.
  const std::map<std::string, std::string>& index() const { return index_; }
  // Every tensor that the layer needs, its dtype and shape checked against the configuration.
  Result<LayerTensors> layer(int64_t id) const;

 private:
  std::string folder_;
  ModelConfig config_;
  std::map<std::string, std::string> index_;
};

// Writes layers with seeded weights (io/seeded_weights.hpp), one shard a layer (its metadata has the seed), with
// config.json and index. The folder is made if it is missing; layers written before stay; a folder with anything but a
// checkpoint of the same configuration is refused, so that nobody's files are replaced.
Status write_seeded_checkpoint(const ModelConfig& config, const std::vector<int64_t>& layers, uint64_t seed,
                               const std::string& folder);

}  // namespace megamla::io
