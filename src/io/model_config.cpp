#include "io/model_config.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json_file.hpp"

namespace megamla::io {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;  // for writing: fields stay in the order of the list below

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

bool read_value(const json& value, int64_t* out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return false;
  *out = value.get<int64_t>();
  return true;
}
bool read_value(const json& value, double* out) {
  if (!value.is_number()) return false;
  *out = value.get<double>();
  return true;
}
bool read_value(const json& value, std::vector<int64_t>* out) {
  if (!value.is_array()) return false;
  out->clear();
  for (const json& entry : value) {
    if (!read_value(entry, &out->emplace_back())) return false;
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
  if (low == high) return io_error("config: {}: expected {}, found {}", name, low, value);
  return io_error("config: {}: expected a value in [{}, {}], found {}", name, low, high, value);
}

// Ids of layers that have compressed keys, ascending.
Status check_sources(const ModelConfig& c, const char* name, const std::vector<int64_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && ids[i] <= ids[i - 1])
      return io_error("config: {}: expected ascending ids, found [{}]", name, fmt::join(ids, ", "));
    if (c.compress_ratio(ids[i]) <= 0) {
      return io_error("config: {}[{}]: expected the id of a layer with a compress ratio of 1 or 2, found {}", name, i,
                      ids[i]);
    }
  }
  return {};
}

Status check_ratios(const ModelConfig& c) {
  for (size_t i = 0; i < c.compress_ratios.size(); ++i) {
    const int64_t ratio = c.compress_ratios[i];
    if (ratio < 0 || ratio > 2) return io_error("config: compress_ratios[{}]: expected 0, 1 or 2, found {}", i, ratio);
  }
  MEGAMLA_RETURN_IF_ERROR(check_sources(c, "kv_source_layer_ids", c.kv_source_layer_ids));
  MEGAMLA_RETURN_IF_ERROR(check_sources(c, "index_source_layer_ids", c.index_source_layer_ids));
  for (size_t i = 0; i < c.compress_ratios.size(); ++i) {
    const int64_t ratio = c.compress_ratios[i];
    if (ratio == 0) continue;
    const auto layer = static_cast<int64_t>(i);
    const int64_t source = c.kv_source_of(layer);
    if (source < 0)
      return io_error("config: kv_source_layer_ids: expected a source at or before layer {}, found none", i);
    if (c.index_source_of(layer) < 0)
      return io_error("config: index_source_layer_ids: expected a source at or before layer {}, found none", i);
    if (c.compress_ratio(source) != ratio) {
      return io_error("config: compress_ratios[{}]: expected {} as its kv source layer {} has, found {}", i,
                      c.compress_ratio(source), source, ratio);
    }
  }
  return {};
}

Status check_numbers(const ModelConfig& c) {
  const std::pair<const char*, double> thetas[] = {{"rope_theta", c.rope_theta},
                                                   {"compress_rope_theta", c.compress_rope_theta}};
  for (const auto& [name, value] : thetas) {
    if (!(value > 1)) return io_error("config: {}: expected a value above 1, found {}", name, value);
  }
  if (!(c.rope_factor >= 1))
    return io_error("config: rope_scaling.factor: expected a value of at least 1, found {}", c.rope_factor);
  if (!(c.original_max_position_embeddings > 0)) {
    return io_error("config: rope_scaling.original_max_position_embeddings: expected a value above 0, found {}",
                    c.original_max_position_embeddings);
  }
  if (!(c.beta_slow > 0))
    return io_error("config: rope_scaling.beta_slow: expected a value above 0, found {}", c.beta_slow);
  if (!(c.beta_fast > c.beta_slow)) {
    return io_error("config: rope_scaling.beta_fast: expected a value above beta_slow ({}), found {}", c.beta_slow,
                    c.beta_fast);
  }
  if (!(c.rms_norm_eps >= 0))
    return io_error("config: rms_norm_eps: expected a value of at least 0, found {}", c.rms_norm_eps);
  return {};
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
  if (num_attention_heads % o_groups != 0) {
    return io_error("config: num_attention_heads: expected a multiple of o_groups ({}), found {}", o_groups,
                    num_attention_heads);
  }
  MEGAMLA_RETURN_IF_ERROR(check_ratios(*this));
  return check_numbers(*this);
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
  const Result<json> document = read_json_object(path);
  if (!document.ok()) return document.status();
  const auto text = document.value().find("text_config");
  if (text == document.value().end() || !text->is_object()) {
    return io_error("{}: text_config: expected an object, found {}", path,
                    text == document.value().end() ? "nothing" : describe(*text));
  }
  ModelConfig config;
  Status status;
  const auto read_from = [&](const json& object, const std::string& prefix) {
    return [&, prefix](const char* name, auto& target) {
      if (!status.ok()) return;
      const auto value = object.find(name);
      if (value == object.end() || !read_value(*value, &target)) {
        status = io_error("{}: {}{}: expected {}, found {}", path, prefix, name, kind_of(target),
                          value == object.end() ? "nothing" : describe(*value));
      }
    };
  };
  for_each_field(config, read_from(*text, ""));
  if (!status.ok()) return status;
  const auto scaling = text->find("rope_scaling");
  if (scaling == text->end() || !scaling->is_object()) {
    return io_error("{}: rope_scaling: expected an object, found {}", path,
                    scaling == text->end() ? "nothing" : describe(*scaling));
  }
  for (const char* name : {"type", "rope_type"}) {
    const auto type = scaling->find(name);
    if (type != scaling->end() && *type != "yarn")
      return io_error("{}: rope_scaling.{}: expected 'yarn', found {}", path, name, describe(*type));
  }
  for_each_scaling_field(config, read_from(*scaling, "rope_scaling."));
  if (!status.ok()) return status;
  if (Status valid = config.validate(); !valid.ok()) return io_error("{}: {}", path, valid.message());
  return config;
}

std::string model_config_text(const ModelConfig& config) {
  ordered_json text = ordered_json::object();
  for_each_field(config, [&](const char* name, const auto& value) { text[name] = value; });
  ordered_json scaling = {{"type", "yarn"}};
  for_each_scaling_field(config, [&](const char* name, const auto& value) { scaling[name] = value; });
  text["rope_scaling"] = scaling;
  return ordered_json{{"architectures", {"DeepseekV41ForCausalLM"}}, {"text_config", text}}.dump(2) + '\n';
}

Status write_model_config(const ModelConfig& config, const std::string& path) {
  MEGAMLA_RETURN_IF_ERROR(config.validate());
  return write_text_file(path, model_config_text(config));
}

}  // namespace megamla::io
