// layer_step: one ratio-1 layer's decode step, hidden states to output.
#include <algorithm>

#include "bench/bench.hpp"
#include "check/kv_formats.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "model/seeded_layer.hpp"

namespace megamla::bench {
namespace {

constexpr int64_t kLayer = 20;  // ratio 1, kv source
constexpr int64_t kWindowPage = 32;
constexpr int64_t kPage = 128;
constexpr int64_t kContext = 2048;  // compressed keys per request: more than index_topk

class DecodeStep {
 public:
  DecodeStep(const Options& o, int64_t heads, int64_t tokens) : exec_(o.exec) {
    const io::ModelConfig model = io::deepseek_v41_flash();
    config_ = layer_config(model, kLayer);
    config_.tp_size = model.num_attention_heads / heads;
    config_.max_model_len = kContext;
    config_.max_num_batched_tokens = tokens;
    config_.max_num_requests = tokens;
    config_.prefill_path = MEGAMLA_PREFILL_PAGED;
    config_.window_format = check::kv_format(o.window_format);
    config_.compressed_format = check::kv_format(o.topk_format);
    megamla_layer* made = nullptr;
    check(megamla_layer_create(&config_, device(), &made));
    layer_.reset(made);
    const Status loaded = load_seeded(made, model, kLayer, 4101);
    if (!loaded.ok()) throw app::InputError(loaded.message());
    int64_t bytes = 0;
    check(megamla_layer_workspace_size(made, device(), exec_.num_threads, &bytes));
    megamla_workspace* workspace = nullptr;
    check(megamla_workspace_create(arena_.bytes(bytes), bytes, nullptr, nullptr, &workspace));
    workspace_.reset(workspace);
    make_batch(tokens);
  }

  void run() {
    ++metadata_.step_id;
    check(megamla_layer_forward(layer_.get(), &params_, &exec_));
  }
  int64_t weight_bytes() const { return megamla_layer_weight_bytes(layer_.get()); }
  const megamla_layer_config& config() const { return config_; }

 private:
  megamla_device device() const { return static_cast<megamla_device>(exec_.device); }

  megamla_kv_cache pool(int32_t format_id, int64_t page, int64_t pages) {
    const auto kind = static_cast<megamla_kv_format>(format_id);
    const int64_t stride = format::round_up(page * format::record_bytes(kind), 512);
    megamla_kv_cache c{arena_.bytes(stride * pages), pages, stride, page, kind, MEGAMLA_PAGE_PLANAR, -1, 0};
    fill_cache(c, 9);
    return c;
  }

  void make_batch(int64_t tokens) {
    megamla_step_metadata_init(&metadata_);
    const int64_t window_columns = kContext / kWindowPage;
    const int64_t columns = kContext / kPage;
    metadata_.query_start_loc = arena_.tensor(MEGAMLA_I32, {tokens + 1});
    metadata_.seq_lens = arena_.tensor(MEGAMLA_I32, {tokens});
    metadata_.positions = arena_.tensor(MEGAMLA_I64, {tokens});
    metadata_.slot_mapping = arena_.tensor(MEGAMLA_I64, {tokens});
    metadata_.compressed_slot_mapping = arena_.tensor(MEGAMLA_I64, {tokens});
    metadata_.window_table = arena_.tensor(MEGAMLA_I32, {tokens, window_columns});
    metadata_.compressed_table = arena_.tensor(MEGAMLA_I32, {tokens, columns});
    // Only the window's pages exist; those before it are named by nobody.
    const int64_t window_pages = config_.window / kWindowPage + 1;
    for (int64_t t = 0; t < tokens; ++t) {
      at<int32_t>(metadata_.query_start_loc, t + 1) = static_cast<int32_t>(t + 1);
      at<int32_t>(metadata_.seq_lens, t) = kContext;
      at<int64_t>(metadata_.positions, t) = kContext - 1;
      for (int64_t b = 0; b < window_columns; ++b) {
        const int64_t back = window_columns - 1 - b;
        at<int32_t>(metadata_.window_table, t, b) =
            back < window_pages ? static_cast<int32_t>(t * window_pages + back) : -1;
      }
      for (int64_t b = 0; b < columns; ++b)
        at<int32_t>(metadata_.compressed_table, t, b) = static_cast<int32_t>(t * columns + b);
      at<int64_t>(metadata_.slot_mapping, t) = t * window_pages * kWindowPage + kWindowPage - 1;
      at<int64_t>(metadata_.compressed_slot_mapping, t) = (t + 1) * kContext - 1;
    }
    megamla_forward_params_init(&params_);
    params_.x = arena_.tensor(MEGAMLA_BF16, {tokens, config_.hidden_size});
    fill_bf16(params_.x.data, tokens * config_.hidden_size, 6);
    params_.y = arena_.tensor(MEGAMLA_BF16, {tokens, config_.hidden_size});
    params_.cos_sin = arena_.tensor(MEGAMLA_F32, {kContext, 64});
    std::fill_n(data<float>(params_.cos_sin), kContext * 64, 0.70710678F);
    params_.window = pool(config_.window_format, kWindowPage, tokens * window_pages);
    params_.compressed = pool(config_.compressed_format, kPage, tokens * columns);
    params_.metadata = &metadata_;
    params_.workspace = workspace_.get();
  }

  megamla_exec exec_;
  app::Arena arena_;
  megamla_layer_config config_{};
  LayerHandle layer_;
  WorkspaceHandle workspace_;
  megamla_step_metadata metadata_{};
  megamla_forward_params params_{};
};

}  // namespace

void bench_layer_step(const Options& o, const Emit& emit) {
  for (const int64_t heads : o.heads) {
    if (heads > 64 || 64 % heads != 0)
      throw app::InputError(fmt::format("--heads: expected a divisor of 64 for layer_step, got {}", heads));
    for (const int64_t tokens : o.tokens) {
      DecodeStep step(o, heads, tokens);
      const megamla_layer_config& c = step.config();
      Row row;
      row.cell = {{"op", "layer_step"}, {"heads", heads}, {"topk", c.index_topk}, {"tokens", tokens}};
      row.implementation = "layer";
      const double keys = static_cast<double>(c.window + c.index_topk);
      // Every weight is used once per token; the keys once per head and product.
      row.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(step.weight_bytes()) +
                  4.0 * static_cast<double>(tokens * heads) * keys * 512;
      row.bytes = static_cast<double>(step.weight_bytes()) + static_cast<double>(tokens) * keys * 528;
      row.seconds = time_calls(o, 1, [&](int) { step.run(); });
      emit(std::move(row));
    }
  }
}

}  // namespace megamla::bench
