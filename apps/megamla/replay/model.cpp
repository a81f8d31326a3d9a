#include "replay/model.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "command.hpp"
#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "megamla/rope_table.h"
#include "model/checkpoint_layer.hpp"

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

bool is_source(const Model::Layer& layer) {
  return layer.config.compress_ratio > 0 && layer.config.kv_source_layer == layer.id;
}

}  // namespace

Model::Model(const ModelOptions& options)
    : config_(io::deepseek_v41_flash()), exec_(options.exec), window_(options.limits.window) {
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
    megamla_layer* made = nullptr;
    check(megamla_layer_create(&layer.config, static_cast<megamla_device>(exec_.device), &made));
    layer.handle.reset(made);
    layers_.push_back(std::move(layer));
  }
}

void Model::load_weights(const ModelOptions& options) {
  for (Layer& layer : layers_) {
    check(options.weights.empty() ? load_seeded(layer.handle.get(), config_, layer.id, options.seed)
                                  : load_checkpoint_layer(layer.handle.get(), options.weights, layer.id));
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
      check(megamla_rope_table(&p, &exec_));
    }
    layer.cos_sin = table;
    if (is_source(layer) && layer.config.compress_ratio == 2)
      layer.state = tensor(MEGAMLA_F32, {limits.max_requests + 1, 8, 1024});
  }
  const int64_t t = limits.max_batched_tokens;
  const int64_t r = limits.max_requests;
  x_ = tensor(MEGAMLA_BF16, {t, config_.hidden_size});
  y_ = tensor(MEGAMLA_BF16, {t, config_.hidden_size});
  query_start_loc_ = tensor(MEGAMLA_I32, {r + 1});
  seq_lens_ = tensor(MEGAMLA_I32, {r});
  positions_ = tensor(MEGAMLA_I64, {t});
  slots_ = tensor(MEGAMLA_I64, {t});
  compressed_slots_ = {{}, tensor(MEGAMLA_I64, {t}), tensor(MEGAMLA_I64, {t})};
  window_table_ = tensor(MEGAMLA_I32, {r, (options.max_model_len + kWindowPageTokens - 1) / kWindowPageTokens});
  compressed_table_ =
      tensor(MEGAMLA_I32, {r, (options.max_model_len + kCompressedPageTokens - 1) / kCompressedPageTokens});
  state_block_ = tensor(MEGAMLA_I32, {r});
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
  check(megamla_workspace_create(arena_.bytes(bytes), bytes, nullptr, nullptr, &made));
  workspace_.reset(made);
  workspace_bytes_ += bytes;
  for (const Layer& layer : layers_) {
    megamla_forward_params p;
    megamla_forward_params_init(&p);
    p.x = x_;
    p.y = y_;
    p.workspace = made;
    check(megamla_layer_forward(layer.handle.get(), &p, &exec_));
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
  StepBatch b;
  megamla_step_metadata_init(&b.metadata);
  int64_t t = 0;
  for (size_t r = 0; r < step.size(); ++r) {
    const Request& request = *step[r].request;
    const auto row = static_cast<int64_t>(r);
    at<int32_t>(query_start_loc_, row) = static_cast<int32_t>(t);
    at<int32_t>(seq_lens_, row) = static_cast<int32_t>(request.computed + step[r].query);
    at<int32_t>(state_block_, row) = request.state_block;
    const auto copy_table = [&](const std::vector<int32_t>& from, const megamla_tensor& to) {
      std::fill_n(&at<int32_t>(to, row, 0), to.shape[1], kNoBlock);
      std::copy(from.begin(), from.end(), &at<int32_t>(to, row, 0));
    };
    copy_table(request.window_table, window_table_);
    copy_table(request.compressed_table, compressed_table_);
    for (int64_t position = request.computed; position < request.computed + step[r].query; ++position, ++t) {
      at<int64_t>(positions_, t) = position;
      const int64_t page = request.window_table[static_cast<size_t>(position / kWindowPageTokens)];
      at<int64_t>(slots_, t) = page * kWindowPageTokens + position % kWindowPageTokens;
      for (int64_t ratio = 1; ratio <= 2; ++ratio) {
        const int64_t per_page = compressed_slots_per_page(ratio);
        const int64_t key = position / ratio;
        const int64_t block = request.compressed_table[static_cast<size_t>(position / kCompressedPageTokens)];
        at<int64_t>(compressed_slots_[static_cast<size_t>(ratio)], t) =
            (position + 1) % ratio == 0 ? block * per_page + key % per_page : -1;
      }
      fill_hidden(request, position, config_.hidden_size, &at<uint16_t>(x_, t, 0));
    }
  }
  const auto requests = static_cast<int64_t>(step.size());
  at<int32_t>(query_start_loc_, requests) = static_cast<int32_t>(t);
  b.tokens = t;
  b.x = slice(x_, 0, t);
  b.metadata.query_start_loc = slice(query_start_loc_, 0, requests + 1);
  b.metadata.seq_lens = slice(seq_lens_, 0, requests);
  b.metadata.positions = slice(positions_, 0, t);
  b.metadata.slot_mapping = slice(slots_, 0, t);
  b.metadata.window_table = slice(window_table_, 0, requests);
  b.metadata.compressed_table = slice(compressed_table_, 0, requests);
  b.metadata.state_block = slice(state_block_, 0, requests);
  b.metadata.step_id = ++step_id_;
  return b;
}

megamla_tensor Model::forward(const Layer& layer, const StepBatch& batch) {
  megamla_step_metadata metadata = batch.metadata;
  if (layer.config.compress_ratio > 0) {
    metadata.compressed_slot_mapping =
        slice(compressed_slots_[static_cast<size_t>(layer.config.compress_ratio)], 0, batch.tokens);
  }
  megamla_forward_params p;
  megamla_forward_params_init(&p);
  p.x = batch.x;
  p.y = slice(y_, 0, batch.tokens);
  p.cos_sin = layer.cos_sin;
  p.window = layer.window;
  p.compressed = layer.compressed;
  p.compressor_state = layer.state;
  p.metadata = &metadata;
  p.workspace = workspace_.get();
  check(megamla_layer_forward(layer.handle.get(), &p, &exec_));
  return p.y;
}

void fill_hidden(const Request& request, int64_t position, int64_t width, uint16_t* row) {
  const auto block = static_cast<size_t>(position / io::kTraceBlockTokens);
  const bool named = position < request.prompt && block < request.hash_ids.size();
  // Two key spaces: prompt blocks that the trace names, and everything that belongs to one request.
  const uint64_t owner =
      named ? static_cast<uint64_t>(request.hash_ids[block]) * 2 : static_cast<uint64_t>(request.id) * 2 + 1;
  uint64_t state = (owner * 0x9E3779B97F4A7C15U) ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03U);
  for (int64_t i = 0; i < width; i += 4) {
    state += 0x9E3779B97F4A7C15U;
    uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    for (int64_t j = i; j < std::min(width, i + 4); ++j, z >>= 16) {
      // Sum of two bytes: a triangle around 0 within +-2.
      const int sum = static_cast<int>(z & 255U) + static_cast<int>(z >> 8 & 255U) - 255;
      row[j] = format::to_bf16(static_cast<float>(sum) / 128.0F).bits;
    }
  }
}

}  // namespace megamla::replay
