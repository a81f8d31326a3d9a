// layer_step: one ratio-1 layer's decode step, hidden states to output, with the top-k rows of an indexer.
#include <algorithm>
#include <random>

#include "bench/bench.hpp"
#include "check/kv_formats.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "layer_call.hpp"
#include "model/seeded_layer.hpp"

namespace megamla::bench {
namespace {

constexpr int64_t kLayer = 20;  // ratio 1, kv source
constexpr int64_t kWindowPage = 32;
constexpr int64_t kPage = 128;
constexpr int64_t kContext = 2048;  // of a token's position; top-k rows name compressed keys all over the pool

// Layers of the same shape, each with weights, a window cache and top-k rows of its own, over one pool of compressed
// keys: one after the other they find their bytes cold.
class DecodeSteps {
 public:
  DecodeSteps(const Options& o, int64_t heads, int64_t tokens)
      : options_(o), exec_(o.exec), tokens_(tokens), arena_(o.device()) {
    model_ = io::deepseek_v41_flash();
    config_ = layer_config(model_, kLayer);
    config_.tp_size = model_.num_attention_heads / heads;
    config_.max_model_len = kContext;
    config_.max_num_batched_tokens = tokens;
    config_.max_num_requests = tokens;
    config_.prefill_path = MEGAMLA_PREFILL_PAGED;
    config_.window_format = check::kv_format(o.window_format);
    config_.compressed_format = check::kv_format(o.topk_format);
    add_layers(1);
    make_workspace();
    make_batch();
    if (o.device() == MEGAMLA_DEVICE_CUDA) add_layers(input_sets(o, static_cast<double>(weight_bytes())) - 1);
    for (int i = 0; i < sets(); ++i) add_inputs();
  }

  int sets() const { return static_cast<int>(layers_.size()); }
  void run(int set) {
    const auto i = static_cast<size_t>(set);
    megamla_step_metadata metadata = metadata_;
    metadata.topk = topk_[i];
    metadata.step_id = ++step_id_;
    megamla_forward_params p = params_;
    p.window = windows_[i];
    p.metadata = &metadata;
    check(megamla_layer_forward(layers_[i].get(), &app::LayerCall(p, arena_).params(), &exec_));
  }
  int64_t weight_bytes() const { return megamla_layer_weight_bytes(layers_[0].get()); }
  const megamla_layer_config& config() const { return config_; }

 private:
  megamla_device device() const { return options_.device(); }

  void add_layers(int count) {
    std::vector<megamla_layer*> added(static_cast<size_t>(count));
    for (megamla_layer*& layer : added) {
      check(megamla_layer_create(&config_, device(), &layer));
      layers_.emplace_back(layer);
    }
    const Status loaded = load_seeded(added, model_, kLayer, 4101);
    if (!loaded.ok()) throw app::InputError(loaded.message());
  }

  void make_workspace() {
    int64_t bytes = 0;
    check(megamla_layer_workspace_size(layers_[0].get(), device(), exec_.num_threads, &bytes));
    megamla_workspace* workspace = nullptr;
    check(megamla_workspace_create(arena_.device_bytes(bytes), bytes, nullptr, nullptr, &workspace));
    workspace_.reset(workspace);
    megamla_workspace_lock(workspace);
  }

  megamla_kv_cache pool(int32_t format_id, int64_t page, int64_t pages) {
    const auto kind = static_cast<megamla_kv_format>(format_id);
    const int64_t stride = format::round_up(page * format::record_bytes(kind), 512);
    megamla_kv_cache c{arena_.bytes(stride * pages), pages, stride, page, kind, MEGAMLA_PAGE_PLANAR,
                       arena_.cuda_device(),         0};
    fill_cache(c, 9);
    return c;
  }

  // A token's window pages, and its share of the pool's compressed pages.
  int64_t window_pages() const { return config_.window / kWindowPage + 1; }
  int64_t pages() const {
    const int64_t page = kPage * format::record_bytes(static_cast<megamla_kv_format>(config_.compressed_format));
    return std::max<int64_t>(kContext / kPage, pool_bytes(options_) / page / tokens_);
  }

  void make_batch() {
    megamla_step_metadata_init(&metadata_);
    const int64_t window_columns = kContext / kWindowPage;
    metadata_.query_start_loc = arena_.tensor(MEGAMLA_I32, {tokens_ + 1});
    metadata_.seq_lens = arena_.tensor(MEGAMLA_I32, {tokens_});
    metadata_.positions = arena_.tensor(MEGAMLA_I64, {tokens_});
    metadata_.slot_mapping = arena_.tensor(MEGAMLA_I64, {tokens_});
    metadata_.compressed_slot_mapping = arena_.tensor(MEGAMLA_I64, {tokens_});
    metadata_.window_table = arena_.tensor(MEGAMLA_I32, {tokens_, window_columns});
    metadata_.compressed_table = arena_.tensor(MEGAMLA_I32, {tokens_, pages()});
    // Only the window's pages exist; those before it are named by nobody.
    for (int64_t t = 0; t < tokens_; ++t) {
      at<int32_t>(metadata_.query_start_loc, t + 1) = static_cast<int32_t>(t + 1);
      at<int32_t>(metadata_.seq_lens, t) = kContext;
      at<int64_t>(metadata_.positions, t) = kContext - 1;
      for (int64_t b = 0; b < window_columns; ++b) {
        const int64_t back = window_columns - 1 - b;
        at<int32_t>(metadata_.window_table, t, b) =
            back < window_pages() ? static_cast<int32_t>(t * window_pages() + back) : -1;
      }
      for (int64_t b = 0; b < pages(); ++b)
        at<int32_t>(metadata_.compressed_table, t, b) = static_cast<int32_t>(t * pages() + b);
      at<int64_t>(metadata_.slot_mapping, t) = t * window_pages() * kWindowPage + kWindowPage - 1;
      at<int64_t>(metadata_.compressed_slot_mapping, t) = (t + 1) * pages() * kPage - 1;
    }
    megamla_forward_params_init(&params_);
    params_.x = arena_.tensor(MEGAMLA_BF16, {tokens_, config_.hidden_size});
    fill_bf16(params_.x.data, tokens_ * config_.hidden_size, 6);
    params_.y = arena_.tensor(MEGAMLA_BF16, {tokens_, config_.hidden_size});
    params_.cos_sin = arena_.tensor(MEGAMLA_F32, {kContext, 64});
    std::fill_n(data<float>(params_.cos_sin), kContext * 64, 0.70710678F);
    params_.compressed = pool(config_.compressed_format, kPage, tokens_ * pages());
    params_.workspace = workspace_.get();
  }

  // Of one more layer.
  void add_inputs() {
    windows_.push_back(pool(config_.window_format, kWindowPage, tokens_ * window_pages()));
    topk_.push_back(arena_.tensor(MEGAMLA_I32, {tokens_, config_.index_topk}));
    std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(pages() * kPage - 1));
    std::generate_n(data<int32_t>(topk_.back()), tokens_ * config_.index_topk, [&] { return any(random_); });
  }

  const Options& options_;
  megamla_exec exec_;
  int64_t tokens_;
  io::ModelConfig model_;
  megamla_layer_config config_{};
  app::Arena arena_;
  std::mt19937 random_{3};
  std::vector<LayerHandle> layers_;
  std::vector<megamla_kv_cache> windows_;
  std::vector<megamla_tensor> topk_;
  WorkspaceHandle workspace_;
  uint64_t step_id_ = 0;
  megamla_step_metadata metadata_{};
  megamla_forward_params params_{};
};

// The step's ops beside it: each one's time, and their sum.
void add_ops(const std::vector<OpTime>& ops, Row& row) {
  double sum = 0;
  for (const OpTime& op : ops) {
    sum += op.seconds;
    row.cell["ops"][op.name] = op.seconds * 1e6;
  }
  row.cell["ops_us"] = sum * 1e6;
}

}  // namespace

void bench_layer_step(const Options& o, const Emit& emit) {
  for (const int64_t heads : o.heads) {
    if (heads < 1 || heads > 64 || 64 % heads != 0)
      throw app::InputError(fmt::format("--heads: expected a divisor of 64 for layer_step, got {}", heads));
    for (const int64_t tokens : o.tokens) {
      DecodeSteps steps(o, heads, tokens);
      const megamla_layer_config& c = steps.config();
      Row row;
      row.cell = {{"op", "layer_step"}, {"heads", heads}, {"topk", c.index_topk}, {"tokens", tokens}};
      row.implementation = "layer";
      const double keys = static_cast<double>(c.window + c.index_topk);
      // Every weight is used once per token; the keys once per head and product.
      row.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(steps.weight_bytes()) +
                  4.0 * static_cast<double>(tokens * heads) * keys * 512;
      row.bytes = static_cast<double>(steps.weight_bytes()) + static_cast<double>(tokens) * keys * 528;
      row.seconds = time_calls(o, steps.sets(), [&](int set) { steps.run(set); });
      add_ops(time_step_ops(o, heads, c.index_topk, tokens), row);
      emit(std::move(row));
    }
  }
}

}  // namespace megamla::bench
