// megamla inspect: what a checkpoint, a safetensors file, a trace or a dump of cache pages holds, and the arithmetic of
// KV bytes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "command.hpp"
#include "format/kv_record.hpp"
#include "inspect/pages.hpp"
#include "io/checkpoint.hpp"
#include "io/safetensors.hpp"
#include "io/seeded_weights.hpp"
#include "io/trace.hpp"
#include "options.hpp"
#include "text.hpp"

namespace megamla::app {
namespace {

namespace fs = std::filesystem;

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Compressed rows are kept by the kv sources alone; the window is a constant per request.
double kv_bytes_per_token(const io::ModelConfig& config, megamla_kv_format kind) {
  double bytes = 0;
  for (const int64_t source : config.kv_source_layer_ids) {
    const int64_t ratio = config.compress_ratio(source);
    if (ratio > 0) bytes += static_cast<double>(format::record_bytes(kind)) / static_cast<double>(ratio);
  }
  return bytes;
}

nlohmann::json print_kv(const io::ModelConfig& config, double memory_gib) {
  Table table({"compressed format", "bytes per token", fmt::format("longest context in {:g} GiB", memory_gib)});
  nlohmann::json rows = nlohmann::json::array();
  for (const megamla_kv_format kind : {MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_528, MEGAMLA_KV_FP8_584}) {
    const double bytes = kv_bytes_per_token(config, kind);
    // A model without compressed layers keeps nothing but windows.
    const int64_t longest =
        bytes > 0 ? static_cast<int64_t>(memory_gib * 1073741824.0 / bytes) : config.max_position_embeddings;
    table.add({format::name(kind), fmt::format("{:.0f}", bytes), fmt::format("{} tokens", longest)});
    rows.push_back({{"format", format::name(kind)}, {"bytes_per_token", bytes}, {"tokens", longest}});
  }
  fmt::print("KV cache over all layers (window rows excluded: {} tokens a request and layer)\n", config.sliding_window);
  table.print();
  return rows;
}

nlohmann::json inspect_checkpoint(const std::string& path, double memory_gib) {
  Result<io::Checkpoint> opened = io::Checkpoint::open(path);
  if (!opened.ok()) throw InputError(opened.status().message());
  const io::Checkpoint& checkpoint = opened.value();
  const io::ModelConfig& c = checkpoint.config();
  fmt::print(
      "checkpoint {}: hidden {}, {} heads x {}, {} layers, q_lora {}, o_lora {} in {} groups, window {}, top-k {}\n",
      path, c.hidden_size, c.num_attention_heads, c.head_dim, c.num_hidden_layers, c.q_lora_rank, c.o_lora_rank,
      c.o_groups, c.sliding_window, c.index_topk);
  Table table({"layer", "ratio", "kv source", "tensors", "bytes", "state"});
  nlohmann::json layers = nlohmann::json::array();
  for (int64_t id = 0; id < static_cast<int64_t>(c.compress_ratios.size()); ++id) {
    const std::string prefix = io::tensor_prefix(c, id);
    const auto first = checkpoint.index().lower_bound(prefix);
    if (first == checkpoint.index().end() || first->first.rfind(prefix, 0) != 0) continue;
    Result<io::LayerTensors> layer = checkpoint.layer(id);
    int64_t bytes = 0;
    if (layer.ok()) {
      for (const io::TensorSpec& spec : io::layer_tensors(c, id)) bytes += spec.bytes();
    }
    const int64_t ratio = c.compress_ratio(id);
    const std::string state = layer.ok() ? "complete" : layer.status().message();
    table.add({fmt::format("{}", id), fmt::format("{}", ratio), ratio > 0 ? fmt::format("{}", c.kv_source_of(id)) : "-",
               layer.ok() ? fmt::format("{}", layer.value().tensors.size()) : "-", fmt::format("{}", bytes), state});
    layers.push_back({{"layer", id}, {"ratio", ratio}, {"bytes", bytes}, {"state", state}});
  }
  table.print();
  nlohmann::json record = {{"kind", "checkpoint"}, {"layers", layers}};
  record["kv"] = print_kv(c, memory_gib);
  return record;
}

nlohmann::json inspect_safetensors(const std::string& path) {
  Result<io::SafetensorsFile> opened = io::SafetensorsFile::open(path);
  if (!opened.ok()) throw InputError(opened.status().message());
  nlohmann::json tensors = nlohmann::json::array();
  Table table({"tensor", "dtype", "shape", "bytes"});
  for (const auto& [name, t] : opened.value().tensors()) {
    table.add({one_line(name), t.dtype, shape_text(t.shape), fmt::format("{}", t.bytes)});
    tensors.push_back({{"name", name}, {"dtype", t.dtype}, {"shape", t.shape}, {"bytes", t.bytes}});
  }
  for (const auto& [key, value] : opened.value().metadata()) fmt::print("{} = {}\n", one_line(key), one_line(value));
  table.print();
  return {{"kind", "safetensors"}, {"metadata", opened.value().metadata()}, {"tensors", tensors}};
}

nlohmann::json inspect_trace(const std::string& path, double memory_gib) {
  Result<std::vector<io::TraceRequest>> read = io::read_trace(path);
  if (!read.ok()) throw InputError(read.status().message());
  const std::vector<io::TraceRequest>& requests = read.value();
  std::vector<int64_t> lengths;
  int64_t prompts = 0;
  int64_t outputs = 0;
  for (const io::TraceRequest& r : requests) {
    lengths.push_back(r.input_length + r.output_length);
    prompts += r.input_length;
    outputs += r.output_length;
  }
  std::sort(lengths.begin(), lengths.end());
  const auto at_share = [&](double share) {
    return lengths.empty() ? 0 : lengths[static_cast<size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  fmt::print(
      "trace {}: {} requests, {} prompt tokens, {} output tokens\nprompt and output together: median {}, p95 {}, "
      "longest {}\n",
      path, requests.size(), prompts, outputs, at_share(0.5), at_share(0.95), at_share(1));
  nlohmann::json record = {{"kind", "trace"},
                           {"requests", requests.size()},
                           {"prompt_tokens", prompts},
                           {"output_tokens", outputs},
                           {"longest", at_share(1)}};
  record["kv"] = print_kv(io::deepseek_v41_flash(), memory_gib);
  return record;
}

nlohmann::json inspect(const std::string& path, double memory_gib) {
  if (fs::is_directory(path)) return inspect_checkpoint(path, memory_gib);
  if (!fs::exists(path))
    throw InputError(
        fmt::format("{}: expected a checkpoint folder, a safetensors file or a trace, found nothing", path));
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".safetensors") return inspect_safetensors(path);
  if (extension == ".jsonl") return inspect_trace(path, memory_gib);
  throw InputError(fmt::format("{}: expected a folder, .safetensors or .jsonl, found '{}'", path, extension));
}

}  // namespace

Command inspect_command() {
  struct Options {
    std::string path;
    double memory_gib = 80;
    PagesOptions pages;
    JsonOption json;
  };
  Command command;
  command.summary = "Show what a checkpoint, a golden file, a trace or a dump of cache pages holds";
  command.examples =
      "Examples:\n"
      "  megamla inspect /models/DeepSeek-V4.1-Flash --memory 60\n"
      "  megamla inspect tests/golden/cast__t0.safetensors\n"
      "  megamla inspect examples/demo_trace.jsonl\n"
      "  megamla inspect pool.bin --kv-format fp8_528 --page-size 64 --layout planar\n"
      "\n"
      "A dump of pages has no mark of its layout: both are scored by how well scales fit codes. With --layout, exit "
      "code 1\n"
      "unless it is that one.";
  command.add = [](CLI::App& app) -> std::function<int()> {
    auto o = std::make_shared<Options>();
    app.add_option("path", o->path, "Checkpoint folder, .safetensors file, .jsonl trace or dump of pages")->required();
    app.add_option("--memory", o->memory_gib, "GiB for the KV cache: how long a context fits")
        ->check(number_in(0, 1e9))
        ->capture_default_str();
    CLI::Option* format = app.add_option("--kv-format", o->pages.format, "The file is a dump of pages of such records")
                              ->check(CLI::IsMember({"fp8_528", "nvfp4_288"}));
    app.add_option("--page-size", o->pages.page_size, "Records of a page")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
        ->capture_default_str()
        ->needs(format);
    app.add_option("--page-stride", o->pages.page_stride, "Bytes from page to page (default: padded as engines do)")
        ->check(CLI::Range(int64_t{16}, int64_t{1} << 40))
        ->needs(format);
    app.add_option("--page-offset", o->pages.offset, "Byte of the file at which the first page begins")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
        ->needs(format);
    app.add_option("--layout", o->pages.expected, "The layout that the pages should have")
        ->check(CLI::IsMember({"planar", "interleaved"}))
        ->needs(format);
    o->json.add(app);
    return [o] {
      if (o->pages.format.empty()) {
        o->json.write("inspect", inspect(o->path, o->memory_gib));
        return int{kOk};
      }
      const PagesReport report = inspect_pages(o->path, o->pages);
      o->json.write("inspect", report.record);
      return int{report.as_expected ? kOk : kFailed};
    };
  };
  return command;
}

}  // namespace megamla::app
