// The whole layer: 8 heads x 512 over a hidden size of 32, any lengths, tables, slots and strides.
//
//  - Nothing but memory of the call is touched. A refused step writes nothing but its workspace, an accepted one
//    nothing but elements of its outputs.
//  - Reference and CPU refuse the same, and the CPU's bytes do not depend on the number of threads.
//  - y is near the reference's.
#include <array>
#include <map>
#include <vector>

#include "fuzz/compare.hpp"
#include "fuzz/finding.hpp"
#include "fuzz/snapshot.hpp"
#include "fuzz/spoil.hpp"
#include "fuzz/targets.hpp"
#include "fuzz/targets/layer_weights.hpp"
#include "megamla/megamla.hpp"

namespace megamla::fuzz {
namespace {

constexpr int64_t kHidden = 32;
constexpr int64_t kHeads = 8;

megamla_layer_config draw_config(Choices& c) {
  api::LayerConfig config;
  config.layer_id = 2;
  config.hidden_size = kHidden;
  config.num_heads = kHeads;
  config.o_groups = 1;
  config.q_lora_rank = 32;
  config.o_lora_rank = 128;
  config.window = 8;
  config.index_topk = 6;
  config.max_model_len = 64;
  config.max_num_batched_tokens = 20;
  config.max_num_requests = 5;
  config.compress_ratio = c.in(0, 2);
  config.kv_source_layer = c.one_of<int64_t>({2, 2, 0});
  const bool v4 = c.byte() % 3 == 2;
  if (v4) config.window_format = MEGAMLA_KV_FP8_584;
  if (config.compress_ratio > 0)
    config.compressed_format = v4 ? MEGAMLA_KV_FP8_584 : c.one_of({MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_528});
  config.num_speculative_tokens = c.in(0, 1);
  config.prefill_path = static_cast<int32_t>(c.in(0, 2));
  config.batch_invariant = config.prefill_path != MEGAMLA_PREFILL_GATHERED && c.coin() ? 1 : 0;
  config.quantize_z = c.coin() ? 1 : 0;
  return config;
}

// One loaded layer for each configuration.
megamla_layer* layer_of(const megamla_layer_config& config) {
  static std::map<std::array<char, sizeof(megamla_layer_config)>, api::Layer> layers;
  std::array<char, sizeof(config)> key{};
  std::memcpy(key.data(), &config, sizeof(config));
  api::Layer& layer = layers[key];
  if (layer != nullptr) return layer.get();
  const api::Result made = api::create(config, MEGAMLA_DEVICE_CPU, &layer);
  require(made.ok(), "layer: {}", made.message());
  const LayerWeights weights(config);
  const auto count = static_cast<int64_t>(weights.tensors().size());
  const api::Result loaded(megamla_layer_load(layer.get(), weights.tensors().data(), count));
  require(loaded.ok(), "layer: {}", loaded.message());
  return layer.get();
}

class StepCall {
 public:
  explicit StepCall(Choices& c) : c_(c), v_(c), config_(draw_config(c)), layer_(layer_of(config_)) {
    draw_batch();
    draw_buffers();
    draw_taps();
  }

  void run() {
    const uint8_t plan = c_.byte();
    if (plan >= 160) spoil(c_, metadata_, tensors_);
    if (plan >= 240) spoil(c_, metadata_, tensors_);
    metadata_.struct_size = std::min(metadata_.struct_size, sizeof(megamla_step_metadata));  // there is no more memory
    if (c_.rarely()) params_.reduce = static_cast<int32_t>(c_.number());
    if (!is_backed_call()) return;  // no library could know
    const int threads = static_cast<int>(c_.in(1, 4));
    const int other_threads = static_cast<int>(c_.in(1, 4));
    const Snapshot initial;
    const api::Result reference = forward(MEGAMLA_DEVICE_REFERENCE, threads, initial);
    const Snapshot theirs(static_cast<int64_t>(initial.blocks()));
    const api::Result cpu = forward(MEGAMLA_DEVICE_CPU, threads, initial);
    const Snapshot mine(static_cast<int64_t>(initial.blocks()));
    require(reference.code() == cpu.code(), "forward: reference says '{}', cpu says '{}'", reference.message(),
            cpu.message());
    if (!cpu.ok()) return;
    require(outputs_are_apart(), "forward: accepted with an output that shares memory");
    const api::Result again = forward(MEGAMLA_DEVICE_CPU, other_threads, initial);
    require(again.ok(), "forward: {} threads: {}", other_threads, again.message());
    expect_unchanged(mine, "forward", "another number of threads");
    if (plan < 160) compare_y(theirs, mine);  // a spoilt step reads values that the bound is not made for
  }

 private:
  void draw_batch() {
    const int64_t requests = c_.in(0, 5);
    const int64_t longest = c_.one_of<int64_t>({1, 4, 2});
    std::vector<int32_t> starts{0};
    std::vector<int32_t> lens;
    std::vector<int64_t> positions;
    for (int64_t r = 0; r < requests; ++r) {
      const int64_t count = v_.random(0, longest);
      const int64_t prefix = v_.random(0, 50);
      starts.push_back(static_cast<int32_t>(starts.back() + count));
      lens.push_back(static_cast<int32_t>(prefix + count));
      for (int64_t i = 0; i < count; ++i) positions.push_back(prefix + i);
    }
    const int64_t real = starts.back();
    tokens_ = std::min<int64_t>(real + c_.in(0, 2), 20);
    positions.resize(static_cast<size_t>(tokens_), -1);
    megamla_step_metadata_init(&metadata_);
    metadata_.step_id = 1;
    metadata_.query_start_loc = list(MEGAMLA_I32, starts);
    metadata_.seq_lens = list(MEGAMLA_I32, lens);
    metadata_.positions = list(MEGAMLA_I64, positions);
    if (c_.rarely()) metadata_.positions = v_.integers(MEGAMLA_I32, {tokens_}, 1, -1, 60);
    params_.window = v_.cache(static_cast<megamla_kv_format>(config_.window_format), Use::kInput);
    metadata_.slot_mapping = v_.integers(MEGAMLA_I64, {tokens_}, 0, -1, format::num_slots(params_.window));
    metadata_.window_table = v_.integers(MEGAMLA_I32, {requests, c_.in(0, 9)}, 1, -1, params_.window.num_pages);
    if (config_.compress_ratio == 0) return;
    params_.compressed = v_.cache(static_cast<megamla_kv_format>(config_.compressed_format), Use::kInput);
    metadata_.compressed_table = v_.integers(MEGAMLA_I32, {requests, c_.in(0, 9)}, 1, -1, params_.compressed.num_pages);
    metadata_.compressed_slot_mapping =
        v_.integers(MEGAMLA_I64, {tokens_}, 0, -1, format::num_slots(params_.compressed));
    metadata_.state_block = v_.integers(MEGAMLA_I32, {requests}, 0, 0, 4);
    if (c_.coin()) metadata_.topk = v_.integers(MEGAMLA_I32, {tokens_, config_.index_topk}, 1, -1, 50);
  }

  template <class T>
  megamla_tensor list(megamla_dtype dtype, const std::vector<T>& values) {
    const auto count = static_cast<int64_t>(values.size());
    const megamla_tensor t = v_.tensor(dtype, {count}, 1, Use::kInput);
    if (t.stride[0] > 0) {
      for (int64_t i = 0; i < count; ++i) at<T>(t, i) = values[static_cast<size_t>(i)];
    }
    return t;
  }

  void draw_buffers() {
    params_.x = v_.values(MEGAMLA_BF16, {tokens_, kHidden}, 1);
    params_.y = v_.tensor(c_.coin() ? MEGAMLA_F32 : MEGAMLA_BF16, {tokens_, kHidden}, 1, Use::kOutput);
    params_.cos_sin = v_.values(MEGAMLA_F32, {c_.coin() ? 64 : c_.in(0, 64), 64}, 1);
    if (is_source() && config_.compress_ratio == 2)
      params_.compressor_state = v_.values(MEGAMLA_F32, {c_.in(0, 5), 8, 1024}, 0);
    params_.skip_cache_writes = c_.rarely() ? 1 : 0;
    params_.metadata = &metadata_;
    tensors_ = {&params_.x,
                &params_.y,
                &params_.cos_sin,
                &params_.compressor_state,
                &metadata_.query_start_loc,
                &metadata_.seq_lens,
                &metadata_.positions,
                &metadata_.slot_mapping,
                &metadata_.window_table,
                &metadata_.compressed_slot_mapping,
                &metadata_.compressed_table,
                &metadata_.state_block,
                &metadata_.topk,
                &metadata_.host_query_start_loc,
                &metadata_.host_seq_lens};
    outputs_ = {&params_.y};
    if (present(params_.compressor_state)) outputs_.push_back(&params_.compressor_state);
  }

  void draw_taps() {
    if (!c_.coin()) return;
    params_.taps = &taps_;
    const auto tap = [&](megamla_tensor& t, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
      if (c_.coin()) t = v_.tensor(dtype, shape, 0, Use::kOutput);
      tensors_.push_back(&t);
      outputs_.push_back(&t);
    };
    tap(taps_.qr, MEGAMLA_BF16, {tokens_, config_.q_lora_rank});
    tap(taps_.latent, MEGAMLA_BF16, {tokens_, 512});
    tap(taps_.q, MEGAMLA_BF16, {tokens_, kHeads, 512});
    tap(taps_.lse, MEGAMLA_F32, {tokens_, kHeads});
    if (is_source()) tap(taps_.compressed_latent, MEGAMLA_BF16, {tokens_, 512});
    if (config_.quantize_z == 0) tap(taps_.z, MEGAMLA_BF16, {tokens_, 1, config_.o_lora_rank});
  }

  bool is_source() const { return config_.compress_ratio > 0 && config_.kv_source_layer == config_.layer_id; }

  bool is_backed_call() const {
    return std::all_of(tensors_.begin(), tensors_.end(), [](const auto* t) { return is_backed(*t); });
  }

  bool outputs_are_apart() const {
    for (const megamla_tensor* t : tensors_) {
      for (const megamla_tensor* out : outputs_) {
        if (t != out && is_used(*t) && share_memory(*t, *out)) return false;
      }
      if (is_used(*t) && (share_memory(*t, params_.window) || share_memory(*t, params_.compressed))) return false;
    }
    return true;
  }
  // The host copies of a step's lists are read before anything is written; others belong to other kinds of layers.
  bool is_used(const megamla_tensor& t) const {
    const bool ring = is_source() && config_.compress_ratio == 2;
    const bool compressed = config_.compress_ratio > 0;
    if (&t == &metadata_.host_query_start_loc || &t == &metadata_.host_seq_lens) return false;
    if (&t == &params_.compressor_state || &t == &metadata_.state_block) return ring;
    if (&t == &metadata_.compressed_slot_mapping) return is_source();
    return compressed || (&t != &metadata_.compressed_table && &t != &metadata_.topk);
  }

  // On the bytes of `initial`, over a workspace of its own.
  api::Result forward(megamla_device device, int threads, const Snapshot& initial) {
    initial.restore();
    int64_t bytes = 0;
    const api::Result sized(megamla_layer_workspace_size(layer_, device, threads, &bytes));
    require(sized.ok(), "forward: no workspace size: {}", sized.message());
    const Block block = GuardedMemory::instance().take(bytes, 256, kUnwritten);
    api::Workspace workspace;
    const api::Result bound = api::create(block.begin, bytes, nullptr, nullptr, &workspace);
    require(bound.ok(), "forward: {}", bound.message());
    megamla_workspace_lock(workspace.get());
    params_.workspace = workspace.get();
    api::Exec exec(device);
    exec.num_threads = threads;
    api::Result result = api::run(layer_, params_, exec);
    if (result.ok()) {
      expect_outputs_alone(initial);
    } else {
      require(result.message().find(": expected ") != std::string::npos, "forward: refused with '{}'",
              result.message());
      expect_unchanged(initial, "forward");
    }
    return result;
  }

  void expect_outputs_alone(const Snapshot& initial) const {
    const Snapshot after(static_cast<int64_t>(initial.blocks()));
    std::vector<std::vector<bool>> writable;
    for (size_t i = 0; i < initial.blocks(); ++i) writable.emplace_back(initial.block(i).size());
    const GuardedMemory& memory = GuardedMemory::instance();
    const auto mark = [&](const uint8_t* begin, int64_t bytes) {
      for (size_t i = 0; i < writable.size(); ++i) {
        const int64_t at = begin - memory.block(static_cast<int64_t>(i)).begin;
        if (at < 0 || at + bytes > static_cast<int64_t>(writable[i].size())) continue;
        std::fill_n(writable[i].begin() + at, bytes, true);
      }
    };
    for (const megamla_tensor* t : outputs_) for_each_element(*t, mark);
    if (params_.skip_cache_writes == 0) {
      for_each_record(params_.window, mark);
      if (is_source()) for_each_record(params_.compressed, mark);
    }
    for (size_t i = 0; i < writable.size(); ++i) {
      for (size_t b = 0; b < writable[i].size(); ++b) {
        require(writable[i][b] || after.block(i)[b] == initial.block(i)[b],
                "forward: byte {} of block {} is no output's and was written", b, i);
      }
    }
  }

  // Roundings of each op on the way: a tenth of the rows' size, and where one is not finite both are not.
  void compare_y(const Snapshot& reference, const Snapshot& cpu) const {
    double difference = 0;
    double size = 0;
    const auto dtype = static_cast<megamla_dtype>(params_.y.dtype);
    for_each_element(params_.y, [&](const uint8_t* element, int64_t) {
      const double y = value_of(dtype, reference.of(element));
      const double x = value_of(dtype, cpu.of(element));
      require(std::isfinite(y) == std::isfinite(x), "forward: y: reference {}, cpu {}", y, x);
      if (!std::isfinite(y)) return;
      difference += (x - y) * (x - y);
      size += y * y;
    });
    require(difference <= 0.01 * size, "forward: y differs by {} of its size", std::sqrt(difference / size));
  }

  Choices& c_;
  Views v_;
  megamla_layer_config config_;
  megamla_layer* layer_;
  int64_t tokens_ = 0;
  api::StepMetadata metadata_;
  api::LayerTaps taps_;
  api::Forward params_;
  std::vector<megamla_tensor*> tensors_, outputs_;
};

}  // namespace

void layer(std::span<const uint8_t> decisions) {
  GuardedMemory::instance().reset();
  Choices c(decisions);
  StepCall(c).run();
}

}  // namespace megamla::fuzz
