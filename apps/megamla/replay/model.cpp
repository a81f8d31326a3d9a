#include "replay/model.hpp"

#include <algorithm>
#include <bit>

#include "command.hpp"
#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "layer_call.hpp"
#include "megamla/rope_table.h"
#include "model/checkpoint_layer.hpp"
#include "op_views.hpp"

namespace megamla::replay {
namespace {

void check(megamla_status status) {
  if (status != MEGAMLA_OK) throw app::InputError(megamla_last_error());
}
void check(const Status& status) {
  if (!status.ok()) throw app::InputError(status.message());
}

int64_t compressed_slots_per_page(int64_t ratio) { return kCompressedPageTokens / ratio; }

int64_t page_bytes(int32_t format_id, int64_t slots) {
  const auto kind = static_cast<megamla_kv_format>(format_id);
  return format::round_up(slots * format::record_bytes(kind), 512);
}

LayerHandle create(const megamla_layer_config& config, megamla_device device) {
  megamla_layer* made = nullptr;
  check(megamla_layer_create(&config, device, &made));
  return LayerHandle(made);
}

bool is_source(const Model::Layer& layer) {
  return layer.config.compress_ratio > 0 && layer.config.kv_source_layer == layer.id;
}

}  // namespace

Model::Model(const ModelOptions& options)
    : config_(io::deepseek_v41_flash()), exec_(options.exec), arena_(static_cast<megamla_device>(exec_.device)) {
  if (!options.weights.empty()) {
    Result<io::ModelConfig> read = io::read_model_config(options.weights + "/config.json");
    check(read.status());
    config_ = read.value();
  }
  make_layers(options);
  load_weights(options);
  make_pool(options);
  make_tables(options);
  warm_up();
}

void Model::make_layers(const ModelOptions& options) {
  for (const int64_t id : options.layers) {
    if (config_.compress_ratio(id) < 0) {
      throw app::InputError(
          fmt::format("--layers: expected ids in [0, {}], got {}", config_.compress_ratios.size() - 1, id));
    }
    if (!layers_.empty() && id <= layers_.back().id) {  // a source writes its rows before a consumer reads them
      throw app::InputError(fmt::format("--layers: expected ascending ids, got {} behind {}", id, layers_.back().id));
    }
    Layer layer{};
    layer.id = id;
    layer.config = layer_config(config_, id);
    megamla_kv_format window{};
    megamla_kv_format compressed{};
    check(megamla_resolve_kv_dtype(options.kv_dtype.c_str(), static_cast<megamla_device>(exec_.device), &window,
                                   &compressed));
    layer.config.window_format = window;
    layer.config.compressed_format = layer.config.compress_ratio > 0 ? compressed : MEGAMLA_KV_NONE;
    layer.config.max_model_len = options.max_model_len;
    layer.config.batch_invariant = options.batch_invariant ? 1 : 0;
    layer.config.max_num_batched_tokens = options.limits.max_batched_tokens;
    layer.config.max_num_requests = options.limits.max_batched_tokens;  // sampled rows are single-token requests
    if (layer.config.compress_ratio > 0 &&
        std::find(options.layers.begin(), options.layers.end(), layer.config.kv_source_layer) == options.layers.end()) {
      throw app::InputError(
          fmt::format("--layers: layer {} reads the compressed rows of layer {}: expected it in the list too", id,
                      layer.config.kv_source_layer));
    }
    layer.handle = create(layer.config, static_cast<megamla_device>(exec_.device));
    if (on_gpu() && options.verified) layer.on_host = create(layer.config, MEGAMLA_DEVICE_CPU);
    layers_.push_back(std::move(layer));
  }
}

void Model::load_weights(const ModelOptions& options) {
  for (Layer& layer : layers_) {
    std::vector<megamla_layer*> handles{layer.handle.get()};
    if (layer.on_host != nullptr) handles.push_back(layer.on_host.get());
    if (options.weights.empty()) check(load_seeded(handles, config_, layer.id, options.seed));
    for (size_t i = 0; i < handles.size() && !options.weights.empty(); ++i)
      check(load_checkpoint_layer(handles[i], options.weights, layer.id));
    weight_bytes_ += megamla_layer_weight_bytes(layer.handle.get());
  }
}

// Two kinds of block: window pages of every layer, and compressed pages of every kv source. A block's stride is the sum
// of its layers' pages.
void Model::make_pool(const ModelOptions& options) {
  int64_t window_stride = 0;
  int64_t compressed_stride = 0;
  std::vector<int64_t> window_offset;
  std::vector<int64_t> compressed_offset;
  for (const Layer& layer : layers_) {
    window_offset.push_back(window_stride);
    window_stride += page_bytes(layer.config.window_format, kWindowPageTokens);
    compressed_offset.push_back(compressed_stride);
    if (is_source(layer)) {
      compressed_stride +=
          page_bytes(layer.config.compressed_format, compressed_slots_per_page(layer.config.compress_ratio));
    }
  }
  const int64_t window_bytes = window_stride * options.limits.window_blocks;
  pool_bytes_ = window_bytes + compressed_stride * options.limits.compressed_blocks;
  char* pool = static_cast<char*>(arena_.bytes(pool_bytes_, 0xff));  // NaN in every format: a stray read shows
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.window = {pool + window_offset[i],    options.limits.window_blocks, window_stride,        kWindowPageTokens,
                    layer.config.window_format, MEGAMLA_PAGE_PLANAR,          arena_.cuda_device(), 0};
    if (layer.config.compress_ratio == 0) continue;
    size_t source = 0;
    while (layers_[source].id != layer.config.kv_source_layer) ++source;
    layer.compressed = {pool + window_bytes + compressed_offset[source],
                        options.limits.compressed_blocks,
                        compressed_stride,
                        compressed_slots_per_page(layer.config.compress_ratio),
                        layer.config.compressed_format,
                        MEGAMLA_PAGE_PLANAR,
                        arena_.cuda_device(),
                        0};
  }
}

void Model::make_tables(const ModelOptions& options) {
  const SchedulerLimits& limits = options.limits;
  const auto tensor = [&](megamla_dtype dtype, std::initializer_list<int64_t> shape) {
    int64_t bytes = megamla_dtype_size(dtype);
    for (const int64_t extent : shape) bytes *= extent;
    workspace_bytes_ += bytes;
    return arena_.tensor(dtype, shape);
  };
  megamla_tensor tables[2]{};
  for (Layer& layer : layers_) {
    const bool compressed = layer.config.compress_ratio > 0;
    megamla_tensor& table = tables[compressed ? 1 : 0];
    if (!present(table)) {
      megamla_rope_table_params p;
      megamla_rope_table_init(&p);
      p.theta = compressed ? config_.compress_rope_theta : config_.rope_theta;
      p.factor = compressed ? config_.rope_factor : 1;
      p.original_max_position = config_.original_max_position_embeddings;
      p.beta_fast = config_.beta_fast;
      p.beta_slow = config_.beta_slow;
      table = p.cos_sin = tensor(MEGAMLA_F32, {options.max_model_len, 64});
      const megamla_rope_table_params call = app::placed(p, arena_);
      check(megamla_rope_table(&call, &exec_));
      arena_.download(table.data, options.max_model_len * 64 * 4);  // verification reads it
    }
    layer.cos_sin = table;
    if (is_source(layer) && layer.config.compress_ratio == 2)
      layer.state = tensor(MEGAMLA_F32, {limits.max_requests + 1, 8, 1024});
  }
  buffers_.emplace(arena_, StepBuffers::Size{limits.max_batched_tokens, limits.max_requests, options.max_model_len,
                                             config_.hidden_size});
  workspace_bytes_ += buffers_->bytes();
  largest_bucket_ = std::min(limits.max_requests, limits.max_batched_tokens);
  for (Layer& layer : layers_) layer.y = tensor(MEGAMLA_BF16, {limits.max_batched_tokens, config_.hidden_size});
}

void Model::warm_up() {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    int64_t needed = 0;
    check(megamla_layer_workspace_size(layer.handle.get(), static_cast<megamla_device>(exec_.device), exec_.num_threads,
                                       &needed));
    bytes = std::max(bytes, needed);
  }
  megamla_workspace* made = nullptr;
  check(megamla_workspace_create(arena_.device_bytes(bytes), bytes, nullptr, nullptr, &made));
  workspace_.reset(made);
  workspace_bytes_ += bytes;
  for (const Layer& layer : layers_) {
    megamla_forward_params p;
    megamla_forward_params_init(&p);
    // Any hidden states will do: a warm-up reads none.
    p.x = p.y = layer.y;
    p.y.shape[0] = p.x.shape[0] = 0;
    p.workspace = made;
    check(megamla_layer_forward(layer.handle.get(), &app::LayerCall(p, arena_).params(), &exec_));
  }
  megamla_workspace_lock(made);
}

double Model::kv_bytes_per_token() const {
  double bytes = 0;
  for (const Layer& layer : layers_) {
    if (is_source(layer)) {
      bytes +=
          static_cast<double>(format::record_bytes(static_cast<megamla_kv_format>(layer.config.compressed_format))) /
          static_cast<double>(layer.config.compress_ratio);
    }
  }
  return bytes;
}

StepBatch Model::batch(const std::vector<Scheduled>& step) {
  const bool decodes = std::all_of(step.begin(), step.end(), [](const Scheduled& s) { return s.query == 1; });
  const auto count = static_cast<int64_t>(step.size());
  batch_rows_ = on_gpu() && decodes && count > 0
                    ? std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))), largest_bucket_)
                    : 0;
  return buffers_->fill(step, batch_rows_);
}

void Model::forward(const Layer& layer, const StepBatch& batch) {
  megamla_step_metadata metadata = batch.metadata;
  if (layer.config.compress_ratio > 0)
    metadata.compressed_slot_mapping = slice(buffers_->compressed_slots(layer.config.compress_ratio), 0, batch.tokens);
  megamla_forward_params p;
  megamla_forward_params_init(&p);
  p.x = batch.x;
  p.y = slice(layer.y, 0, batch.tokens);
  p.cos_sin = layer.cos_sin;
  p.window = layer.window;
  p.compressed = layer.compressed;
  p.compressor_state = layer.state;
  p.metadata = &metadata;
  p.workspace = workspace_.get();
  check(megamla_layer_forward(layer.handle.get(), &app::LayerCall(p, arena_).params(), &exec_));
}

void Model::run(const StepBatch& batch) {
  buffers_->enqueue_upload();
  const auto forward_all = [&] {
    for (const Layer& layer : layers_) forward(layer, batch);
  };
  if (batch_rows_ == 0) {
    forward_all();
  } else if (const auto graph = graphs_.find(batch_rows_); graph == graphs_.end()) {
    // The first step of a size brings its kernels to the GPU; then it is recorded.
    forward_all();
    graphs_.emplace(batch_rows_, app::gpu::Graph(forward_all));
  } else {
    graph->second.replay();
    ++graph_replays_;
  }
  if (on_gpu()) app::gpu::synchronise();
}

}  // namespace megamla::replay
