#include "io/checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "io/seeded_weights.hpp"

namespace megamla::io {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

Status read_index(const std::string& folder, std::map<std::string, std::string>* index) {
  const std::string path = folder + "/" + kIndexName;
  if (!fs::exists(path)) {
    const std::string single = folder + "/" + kSingleName;
    if (!fs::exists(single)) return io_error("{}: expected {} or {}, found neither", folder, kIndexName, kSingleName);
    Result<SafetensorsFile> file = SafetensorsFile::open(single);
    if (!file.ok()) return file.status();
    for (const auto& [name, tensor] : file.value().tensors()) (*index)[name] = kSingleName;
    return {};
  }
  std::ifstream file(path);
  const ordered_json document = ordered_json::parse(file, nullptr, false);
  const bool is_object = !document.is_discarded() && document.is_object();
  const auto map = is_object ? document.find("weight_map") : document.end();
  if (!is_object || map == document.end() || !map->is_object())
    return io_error("{}: weight_map: expected an object, found none", path);
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string())
      return io_error("{}: {}: expected a file name, found {}", path, name, shard.dump().substr(0, 40));
    const fs::path shard_path = shard.get<std::string>();
    // A shard lies in the folder itself: an index cannot make the program open another file.
    if (shard_path.filename() != shard_path || shard_path == ".." || shard_path == "." || shard_path.empty()) {
      return io_error("{}: {}: expected a file name without folders, found '{}'", path, name, shard_path.string());
    }
    (*index)[name] = shard_path.string();
  }
  return {};
}

Status check_tensor(const SafetensorsFile& file, const std::string& name, const TensorSpec& spec) {
  const StoredTensor* stored = file.find(name);
  if (stored == nullptr) return io_error("{}: {}: expected a tensor, found nothing", file.path(), name);
  const std::string expected = megamla_dtype_name(spec.dtype);
  if (stored->dtype != expected || stored->shape != spec.shape) {
    return io_error("{}: {}: expected {} [{}], found {} [{}]", file.path(), name, expected, fmt::join(spec.shape, ", "),
                    stored->dtype, fmt::join(stored->shape, ", "));
  }
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  if (!fs::is_directory(folder)) return io_error("{}: expected a checkpoint folder, found none", folder);
  Result<ModelConfig> config = read_model_config(folder + "/config.json");
  if (!config.ok()) return config.status();
  checkpoint.config_ = config.value();
  if (Status status = read_index(folder, &checkpoint.index_); !status.ok()) return status;
  return checkpoint;
}

Result<LayerTensors> Checkpoint::layer(int64_t id) const {
  if (config_.compress_ratio(id) < 0) {
    return io_error("{}: layer: expected an id in [0, {}], found {}", folder_, config_.compress_ratios.size() - 1, id);
  }
  LayerTensors result;
  std::map<std::string, size_t> opened;
  const std::string prefix = tensor_prefix(config_, id);
  for (const TensorSpec& spec : layer_tensors(config_, id)) {
    const std::string name = prefix + spec.name;
    const auto entry = index_.find(name);
    if (entry == index_.end()) return io_error("{}: {}: expected in the index, found nothing", folder_, name);
    if (!opened.contains(entry->second)) {
      Result<SafetensorsFile> file = SafetensorsFile::open(folder_ + "/" + entry->second);
      if (!file.ok()) return file.status();
      opened[entry->second] = result.shards.size();
      result.shards.push_back(std::move(file.value()));
    }
    const SafetensorsFile& shard = result.shards[opened[entry->second]];
    if (Status status = check_tensor(shard, name, spec); !status.ok()) return status;
    Result<megamla_tensor> view = shard.view(name);
    if (!view.ok()) return view.status();
    result.tensors.push_back({spec.name, view.value()});
  }
  return result;
}

Status write_seeded_checkpoint(const ModelConfig& config, const std::vector<int64_t>& layers, uint64_t seed,
                               const std::string& folder) {
  MEGAMLA_RETURN_IF_ERROR(config.validate());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return io_error("{}: cannot be made: {}", folder, error.message());
  std::map<std::string, std::string> index;
  if (fs::exists(folder + "/" + kIndexName)) MEGAMLA_RETURN_IF_ERROR(read_index(folder, &index));
  for (const int64_t layer : layers) {
    if (config.compress_ratio(layer) < 0) {
      return io_error("layer: expected an id in [0, {}], got {}", config.compress_ratios.size() - 1, layer);
    }
    const std::string shard = fmt::format("layer-{:02}.safetensors", layer);
    const std::string prefix = tensor_prefix(config, layer);
    std::vector<SafetensorsWriter::Declaration> declarations;
    const std::vector<TensorSpec> specs = layer_tensors(config, layer);
    for (const TensorSpec& spec : specs) declarations.push_back({prefix + spec.name, spec.dtype, spec.shape});
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder + "/" + shard, declarations);
    if (!writer.ok()) return writer.status();
    std::vector<char> memory;
    for (const TensorSpec& spec : specs) {
      memory.resize(static_cast<size_t>(spec.bytes()));
      fill_seeded(spec, prefix + spec.name, seed, memory.data());
      MEGAMLA_RETURN_IF_ERROR(writer.value().write(memory.data(), spec.bytes()));
      index[prefix + spec.name] = shard;
    }
    MEGAMLA_RETURN_IF_ERROR(writer.value().finish());
  }
  MEGAMLA_RETURN_IF_ERROR(write_model_config(config, folder + "/config.json"));
  const std::string path = folder + "/" + kIndexName;
  std::ofstream file(path + ".part");
  file << ordered_json{{"metadata", {{"seed", seed}}}, {"weight_map", index}}.dump(2) << '\n';
  file.close();
  if (file) fs::rename(path + ".part", path, error);
  if (!file || error) return io_error("{}: cannot be written", path);
  return {};
}

}  // namespace megamla::io
