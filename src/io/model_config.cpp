#include "io/model_config.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace megamla::io {
namespace {

using nlohmann::ordered_json;

// Every field once: its name, and where it lies. Reading and writing walk the same list.
template <class Config, class Visit>
void for_each_field(Config& c, Visit&& visit) {
  visit("hidden_size", c.hidden_size);
  visit("num_hidden_layers", c.num_hidden_layers);
  visit("num_attention_heads", c.num_attention_heads);
  visit("head_dim", c.head_dim);
  visit("qk_rope_head_dim", c.qk_rope_head_dim);
  visit("q_lora_rank", c.q_lora_rank);
  visit("o_lora_rank", c.o_lora_rank);
  visit("o_groups", c.o_groups);
  visit("sliding_window", c.sliding_window);
  visit("index_topk", c.index_topk);
  visit("rms_norm_eps", c.rms_norm_eps);
  visit("compress_ratios", c.compress_ratios);
  visit("kv_source_layer_ids", c.kv_source_layer_ids);
  visit("index_source_layer_ids", c.index_source_layer_ids);
  visit("rope_theta", c.rope_theta);
  visit("compress_rope_theta", c.compress_rope_theta);
  visit("max_position_embeddings", c.max_position_embeddings);
}
template <class Config, class Visit>
void for_each_scaling_field(Config& c, Visit&& visit) {
  visit("factor", c.rope_factor);
  visit("original_max_position_embeddings", c.original_max_position_embeddings);
  visit("beta_fast", c.beta_fast);
  visit("beta_slow", c.beta_slow);
}

bool read_value(const ordered_json& value, int64_t* out) {
  if (!value.is_number_integer()) return false;
  *out = value.get<int64_t>();
  return true;
}
bool read_value(const ordered_json& value, double* out) {
  if (!value.is_number()) return false;
  *out = value.get<double>();
  return true;
}
bool read_value(const ordered_json& value, std::vector<int64_t>* out) {
  if (!value.is_array()) return false;
  out->clear();
  for (const ordered_json& entry : value) {
    if (!entry.is_number_integer()) return false;
    out->push_back(entry.get<int64_t>());
  }
  return true;
}
const char* kind_of(const int64_t&) { return "an integer"; }
const char* kind_of(const double&) { return "a number"; }
const char* kind_of(const std::vector<int64_t>&) { return "a list of integers"; }

int64_t largest_at_most(const std::vector<int64_t>& ids, int64_t layer) {
  int64_t found = -1;
  for (const int64_t id : ids) {
    if (id <= layer) found = std::max(found, id);
  }
  return found;
}

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return io_error("config: {}: expected a value in [{}, {}], found {}", name, low, high, value);
}

}  // namespace

int64_t ModelConfig::compress_ratio(int64_t layer) const {
  return layer < 0 || layer >= static_cast<int64_t>(compress_ratios.size())
             ? -1
             : compress_ratios[static_cast<size_t>(layer)];
}
int64_t ModelConfig::kv_source_of(int64_t layer) const { return largest_at_most(kv_source_layer_ids, layer); }
int64_t ModelConfig::index_source_of(int64_t layer) const { return largest_at_most(index_source_layer_ids, layer); }

Status ModelConfig::validate() const {
  constexpr int64_t kMax = int64_t{1} << 24;
  const std::pair<const char*, int64_t> sizes[] = {{"hidden_size", hidden_size},
                                                   {"num_hidden_layers", num_hidden_layers},
                                                   {"num_attention_heads", num_attention_heads},
                                                   {"q_lora_rank", q_lora_rank},
                                                   {"o_lora_rank", o_lora_rank},
                                                   {"o_groups", o_groups},
                                                   {"sliding_window", sliding_window},
                                                   {"index_topk", index_topk}};
  for (const auto& [name, value] : sizes) MEGAMLA_RETURN_IF_ERROR(check_range(name, value, 1, kMax));
  MEGAMLA_RETURN_IF_ERROR(check_range("head_dim", head_dim, 512, 512));
  MEGAMLA_RETURN_IF_ERROR(check_range("qk_rope_head_dim", qk_rope_head_dim, 64, 64));
  MEGAMLA_RETURN_IF_ERROR(check_range("max_position_embeddings", max_position_embeddings, 1, (int64_t{1} << 31) - 1));
  const auto layers = static_cast<int64_t>(compress_ratios.size());
  if (layers < num_hidden_layers || layers > kMax) {
    return io_error("config: compress_ratios: expected at least {} entries (num_hidden_layers), found {}",
                    num_hidden_layers, layers);
  }
  for (size_t i = 0; i < compress_ratios.size(); ++i) {
    const int64_t ratio = compress_ratios[i];
    if (ratio < 0 || ratio > 2) return io_error("config: compress_ratios[{}]: expected 0, 1 or 2, found {}", i, ratio);
    if (ratio == 0) continue;
    const int64_t source = kv_source_of(static_cast<int64_t>(i));
    if (source < 0)
      return io_error("config: kv_source_layer_ids: expected a source at or before layer {}, found none", i);
    if (compress_ratio(source) != ratio) {
      return io_error("config: compress_ratios[{}]: expected {} as its kv source layer {} has, found {}", i,
                      compress_ratio(source), source, ratio);
    }
  }
  const std::pair<const char*, double> positive[] = {{"rope_theta", rope_theta},
                                                     {"compress_rope_theta", compress_rope_theta}};
  for (const auto& [name, value] : positive) {
    if (!(value > 1)) return io_error("config: {}: expected a value above 1, found {}", name, value);
  }
  if (!(rope_factor >= 1) || !(original_max_position_embeddings > 0) || !(beta_slow > 0) || !(beta_fast > beta_slow)) {
    return io_error(
        "config: rope_scaling: expected factor >= 1, original_max_position_embeddings > 0, 0 < beta_slow < beta_fast, "
        "found {}, {}, {}, {}",
        rope_factor, original_max_position_embeddings, beta_slow, beta_fast);
  }
  if (!(rms_norm_eps >= 0))
    return io_error("config: rms_norm_eps: expected a value of at least 0, found {}", rms_norm_eps);
  return {};
}

ModelConfig deepseek_v41_flash() {
  ModelConfig c;
  for (int64_t layer = 0; layer < 43; ++layer) {
    c.compress_ratios.push_back(layer < 2 || layer >= 40 ? 0 : layer < 20 ? 2 : 1);
  }
  c.kv_source_layer_ids = {2, 8, 14, 20};
  c.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  return c;
}

Result<ModelConfig> read_model_config(const std::string& path) {
  std::ifstream file(path);
  if (!file) return io_error("{}: cannot be opened", path);
  const ordered_json document = ordered_json::parse(file, nullptr, false);
  if (document.is_discarded() || !document.is_object())
    return io_error("{}: expected a JSON object, found something else", path);
  const auto text = document.find("text_config");
  if (text == document.end() || !text->is_object())
    return io_error("{}: text_config: expected an object, found nothing", path);
  ModelConfig config;
  Status status;
  const auto read_from = [&](const ordered_json& object) {
    return [&](const char* name, auto& target) {
      if (!status.ok()) return;
      const auto value = object.find(name);
      if (value == object.end()) {
        status = io_error("{}: {}: expected {}, found nothing", path, name, kind_of(target));
      } else if (!read_value(*value, &target)) {
        status = io_error("{}: {}: expected {}, found {}", path, name, kind_of(target), value->dump().substr(0, 80));
      }
    };
  };
  for_each_field(config, read_from(*text));
  if (!status.ok()) return status;
  const auto scaling = text->find("rope_scaling");
  if (scaling == text->end() || !scaling->is_object())
    return io_error("{}: rope_scaling: expected an object, found nothing", path);
  for_each_scaling_field(config, read_from(*scaling));
  if (!status.ok()) return status;
  if (Status valid = config.validate(); !valid.ok()) return io_error("{}: {}", path, valid.message());
  return config;
}

Status write_model_config(const ModelConfig& config, const std::string& path) {
  MEGAMLA_RETURN_IF_ERROR(config.validate());
  ordered_json text = ordered_json::object();
  for_each_field(config, [&](const char* name, const auto& value) { text[name] = value; });
  ordered_json scaling = {{"type", "yarn"}};
  for_each_scaling_field(config, [&](const char* name, const auto& value) { scaling[name] = value; });
  text["rope_scaling"] = scaling;
  const std::string temporary = path + ".part";
  std::ofstream file(temporary);
  file << ordered_json{{"architectures", {"DeepseekV41ForCausalLM"}}, {"text_config", text}}.dump(2) << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) return io_error("{}: cannot be written", path);
  return {};
}

}  // namespace megamla::io
