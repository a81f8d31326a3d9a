#include "model/seeded_layer.hpp"

#include "core/tensor.hpp"

namespace megamla {
namespace {

megamla_tensor view(const io::TensorSpec& spec, std::vector<char>& memory) {
  return spec.shape.size() == 1 ? host_tensor(memory.data(), spec.dtype, {spec.shape[0]})
                                : host_tensor(memory.data(), spec.dtype, {spec.shape[0], spec.shape[1]});
}

bool is_scale_of(const io::TensorSpec& scale, const io::TensorSpec& weight) {
  const std::string suffix = ".weight";
  return weight.name.size() > suffix.size() &&
         scale.name == weight.name.substr(0, weight.name.size() - suffix.size()) + ".scale";
}

}  // namespace

megamla_layer_config layer_config(const io::ModelConfig& model, int64_t layer) {
  megamla_layer_config c;
  megamla_layer_config_init(&c);
  c.layer_id = layer;
  c.hidden_size = model.hidden_size;
  c.num_heads = model.num_attention_heads;
  c.head_dim = model.head_dim;
  c.rope_dim = model.qk_rope_head_dim;
  c.q_lora_rank = model.q_lora_rank;
  c.o_lora_rank = model.o_lora_rank;
  c.o_groups = model.o_groups;
  c.window = model.sliding_window;
  c.index_topk = model.index_topk;
  c.rms_norm_eps = static_cast<float>(model.rms_norm_eps);
  c.compress_ratio = model.compress_ratio(layer);
  c.kv_source_layer = c.compress_ratio > 0 ? model.kv_source_of(layer) : layer;
  c.max_model_len = model.max_position_embeddings;
  c.compressed_format = c.compress_ratio > 0 ? MEGAMLA_KV_NVFP4_288 : MEGAMLA_KV_NONE;
  return c;
}

Status load_seeded(std::span<megamla_layer* const> layers, const io::ModelConfig& model, int64_t layer_id,
                   uint64_t seed) {
  const std::vector<io::TensorSpec> specs = io::layer_tensors(model, layer_id);
  const std::string prefix = io::tensor_prefix(model, layer_id);
  std::vector<char> memory[2];
  for (size_t i = 0; i < specs.size(); ++i) {
    megamla_named_tensor tensors[2];
    int64_t count = 0;
    const auto add = [&](const io::TensorSpec& spec) {
      memory[count].resize(static_cast<size_t>(spec.bytes()));
      io::fill_seeded(spec, prefix + spec.name, seed, memory[count].data());
      tensors[count] = {spec.name.c_str(), view(spec, memory[count])};
      ++count;
    };
    add(specs[i]);
    if (i + 1 < specs.size() && is_scale_of(specs[i + 1], specs[i])) add(specs[++i]);
    for (megamla_layer* layer : layers) {
      const megamla_status status = megamla_layer_load(layer, tensors, count);
      if (status != MEGAMLA_OK) return {status, megamla_last_error()};
    }
  }
  return {};
}

Status load_seeded(megamla_layer* layer, const io::ModelConfig& model, int64_t layer_id, uint64_t seed) {
  return load_seeded(std::span<megamla_layer* const>(&layer, 1), model, layer_id, seed);
}

}  // namespace megamla
