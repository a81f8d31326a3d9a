#include "io/checkpoint.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json_file.hpp"
#include "io/seeded_weights.hpp"

namespace megamla::io {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

Status read_index(const std::string& folder, std::map<std::string, std::string>* index) {
  const std::string path = folder + "/" + kIndexName;
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::string single = folder + "/" + kSingleName;
    if (!fs::exists(single, error))
      return io_error("{}: expected {} or {}, found neither", folder, kIndexName, kSingleName);
    Result<SafetensorsFile> file = SafetensorsFile::open(single);
    if (!file.ok()) return file.status();
    for (const auto& [name, tensor] : file.value().tensors()) (*index)[name] = kSingleName;
    return {};
  }
  const Result<json> document = read_json_object(path);
  if (!document.ok()) return document.status();
  const auto map = document.value().find("weight_map");
  if (map == document.value().end() || !map->is_object()) {
    return io_error("{}: weight_map: expected an object, found {}", path,
                    map == document.value().end() ? "nothing" : describe(*map));
  }
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string())
      return io_error("{}: {}: expected a file name, found {}", path, brief(name), describe(shard));
    // A shard lies in the folder itself: an index cannot make the program open another file.
    const auto& file = shard.get_ref<const std::string&>();
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return io_error("{}: {}: expected a file name without folders, found '{}'", path, brief(name), brief(file));
    }
    (*index)[name] = file;
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

Status write_index(const std::string& folder, const std::map<std::string, std::string>& index) {
  const json document = {{"metadata", json::object()}, {"weight_map", index}};
  return write_text_file(fmt::format("{}/{}", folder, kIndexName), document.dump(2) + '\n');
}

// A folder that may be written: none, an empty one, or one with the same configuration. Anything else is someone's
// checkpoint.
Status check_target(const ModelConfig& config, const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return {};
  if (!fs::is_directory(folder, error)) return io_error("{}: expected a folder, found something else", folder);
  if (fs::is_empty(folder, error)) return {};
  const std::string path = folder + "/config.json";
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return io_error("{}: expected an empty folder or a config.json in it, found neither", folder);
  const std::string expected = model_config_text(config);
  const std::span<const uint8_t> found = file.value().bytes();
  if (std::string_view(reinterpret_cast<const char*>(found.data()), found.size()) != expected) {
    return io_error("{}: expected the configuration of the layers to be written, found another; choose another folder",
                    path);
  }
  return {};
}

Status write_seeded_shard(const ModelConfig& config, int64_t layer, uint64_t seed, const std::string& path) {
  const std::string prefix = tensor_prefix(config, layer);
  const std::vector<TensorSpec> specs = layer_tensors(config, layer);
  std::vector<SafetensorsWriter::Declaration> declarations;
  declarations.reserve(specs.size());
  for (const TensorSpec& spec : specs) declarations.push_back({prefix + spec.name, spec.dtype, spec.shape});
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(path, declarations, {{"format", "pt"}, {"seed", std::to_string(seed)}});
  if (!writer.ok()) return writer.status();
  std::vector<char> memory;
  for (const TensorSpec& spec : specs) {
    memory.resize(static_cast<size_t>(spec.bytes()));
    fill_seeded(spec, prefix + spec.name, seed, memory.data());
    MEGAMLA_RETURN_IF_ERROR(writer.value().write(memory.data(), spec.bytes()));
  }
  return writer.value().finish();
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return io_error("{}: expected a checkpoint folder, found none", folder);
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
  for (const int64_t layer : layers) {
    if (config.compress_ratio(layer) < 0) {
      return invalid_argument("layer: expected an id in [0, {}], got {}", config.compress_ratios.size() - 1, layer);
    }
  }
  MEGAMLA_RETURN_IF_ERROR(check_target(config, folder));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return io_error("{}: cannot be made: {}", folder, error.message());
  // First, so that an interrupted run can be taken up again.
  MEGAMLA_RETURN_IF_ERROR(write_model_config(config, folder + "/config.json"));
  std::map<std::string, std::string> index;
  if (fs::exists(fmt::format("{}/{}", folder, kIndexName), error)) MEGAMLA_RETURN_IF_ERROR(read_index(folder, &index));
  for (const int64_t layer : layers) {
    const std::string shard = fmt::format("layer-{:02}.safetensors", layer);
    MEGAMLA_RETURN_IF_ERROR(write_seeded_shard(config, layer, seed, fmt::format("{}/{}", folder, shard)));
    const std::string prefix = tensor_prefix(config, layer);
    for (const TensorSpec& spec : layer_tensors(config, layer)) index[prefix + spec.name] = shard;
  }
  return write_index(folder, index);
}

}  // namespace megamla::io
