// layer: one attention layer at real geometry over several steps on one state, end to end from hidden states
// (docs/golden.md, "Whole layer").
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/case.hpp"
#include "check/kv_formats.hpp"
#include "check/layer_rules.hpp"
#include "layer_call.hpp"
#include "model/seeded_layer.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kDims = 512;

io::ModelConfig model_of(const Case& g) {
  io::ModelConfig model = io::deepseek_v41_flash();
  model.hidden_size = g.integer("hidden_size");
  model.num_attention_heads = g.integer("num_heads");
  model.q_lora_rank = g.integer("q_lora_rank");
  model.o_lora_rank = g.integer("o_lora_rank");
  model.o_groups = g.integer("o_groups");
  model.sliding_window = g.integer("sliding_window");
  model.rms_norm_eps = g.number("eps");
  return model;
}

// Everything that the steps of a case share.
class LayerCase {
 public:
  explicit LayerCase(Run& r)
      : run_(r),
        g_(r.golden),
        model_(model_of(g_)),
        layer_id_(g_.integer("layer")),
        source_(g_.text("role") == "source"),
        consumer_(g_.text("role") == "consumer"),
        x_rows_(g_.input("in.x_rows", MEGAMLA_BF16, {kAny, model_.hidden_size})),
        x_index_(g_.input("in.x_index", MEGAMLA_I32, {kAny})),
        step_tokens_(g_.input("in.step_tokens", MEGAMLA_I32, {kAny})),
        step_requests_(g_.input("in.step_requests", MEGAMLA_I32, {step_tokens_.shape[0]})),
        request_(g_.input("in.request", MEGAMLA_I32, {kAny})),
        query_len_(g_.input("in.query_len", MEGAMLA_I32, {request_.shape[0]})),
        seq_len_(g_.input("in.seq_len", MEGAMLA_I32, {request_.shape[0]})),
        positions_(g_.input("in.positions", MEGAMLA_I64, {x_index_.shape[0]})),
        slots_(g_.input("in.slot_mapping", MEGAMLA_I64, {x_index_.shape[0]})),
        window_table_(g_.input("in.window_table", MEGAMLA_I32, {kAny, kAny})),
        compressed_slots_(optional("in.compressed_slot_mapping", MEGAMLA_I64, {x_index_.shape[0]})),
        compressed_table_(optional("in.compressed_table", MEGAMLA_I32, {kAny, kAny})),
        state_block_(optional("in.state_block", MEGAMLA_I32, {kAny})),
        topk_(optional("in.topk", MEGAMLA_I32, {x_index_.shape[0], kAny})),
        cos_sin_(g_.input("in.cos_sin", MEGAMLA_F32, {kAny, 64})) {
    tokens_ = x_index_.shape[0];
    check_ranges();
  }

  // Runs every step on rank `rank` of `tp`; y F32 [T, hidden] comes back, and with TP 1 every stage is compared.
  megamla_tensor steps(int64_t tp, int64_t rank) {
    pool_ = run_.arena().tensor(MEGAMLA_U8, {g_.integer("num_pages"), g_.integer("page_stride")},
                                static_cast<uint8_t>(g_.integer("pool_fill")));
    make_layer(tp, rank);
    LayerResults results = make_results(run_.arena(), tokens_, model_, tp);
    PoolRule pool(run_, pool_, window_cache(), compressed_cache());
    for (int64_t s = 0; s + 1 < step_tokens_.shape[0]; ++s) {
      if (consumer_) write_source_records(s);
      step(s, results);
      if (tp == 1) {
        pool.expect_step(at<const int32_t>(step_tokens_, s), at<const int32_t>(step_tokens_, s + 1), slots_,
                         compressed_slots_);
        pool.check(s);
      }
    }
    if (tp == 1) compare_layer(run_, results, real_rows());
    return results.y;
  }

  void ranks() {
    if (!g_.has("out.y_rank")) return;
    const int64_t tp = g_.integer("tp_size");
    for (int64_t rank = 0; rank < tp; ++rank) compare_rank(run_, steps(tp, rank), rank);
  }

 private:
  static constexpr int64_t kAny = Case::kAny;

  megamla_tensor optional(const std::string& name, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
    return g_.has(name) ? g_.input(name, dtype, shape) : megamla_tensor{};
  }

  // What the harness itself uses as an index; all else is checked by the layer.
  void check_ranges() const {
    const auto within = [&](const char* name, const megamla_tensor& t, int64_t limit) {
      for (int64_t i = 0; i < t.shape[0]; ++i) {
        const int64_t value = at<const int32_t>(t, i);
        if (value < 0 || value >= limit)
          g_.refuse(name, fmt::format("indices in [0, {})", limit), fmt::format("{}", value));
      }
    };
    within("in.x_index", x_index_, x_rows_.shape[0]);
    within("in.step_tokens", step_tokens_, tokens_ + 1);
    within("in.step_requests", step_requests_, request_.shape[0] + 1);
    int64_t requests = window_table_.shape[0];
    if (present(compressed_table_)) requests = std::min(requests, compressed_table_.shape[0]);
    if (present(state_block_)) requests = std::min(requests, state_block_.shape[0]);
    within("in.request", request_, requests);
    if (present(state_block_)) within("in.state_block", state_block_, 4096);
    for (int64_t s = 0; s + 1 < step_tokens_.shape[0]; ++s) {
      int64_t queries = 0;
      if (at<const int32_t>(step_requests_, s + 1) < at<const int32_t>(step_requests_, s)) {
        g_.refuse("in.step_requests", "ascending offsets", "a smaller one");
      }
      for (int64_t r = at<const int32_t>(step_requests_, s); r < at<const int32_t>(step_requests_, s + 1); ++r) {
        queries += std::max(at<const int32_t>(query_len_, r), 0);
      }
      const int64_t rows = at<const int32_t>(step_tokens_, s + 1) - at<const int32_t>(step_tokens_, s);
      if (queries > rows)
        g_.refuse("in.query_len", fmt::format("at most {} tokens in step {}", rows, s), fmt::format("{}", queries));
    }
  }

  megamla_kv_cache window_cache() const {
    return kv_cache(pool_, g_.text("window_format"), g_.text("window_layout"), g_.integer("window_page_size"),
                    g_.integer("window_base_offset"));
  }
  megamla_kv_cache compressed_cache() const {
    if (g_.text("compressed_format") == "none") return {};
    return kv_cache(pool_, g_.text("compressed_format"), g_.text("compressed_layout"),
                    g_.integer("compressed_page_size"), g_.integer("compressed_base_offset"));
  }

  void make_layer(int64_t tp, int64_t rank) {
    megamla_layer_config c = layer_config(model_, layer_id_);
    c.tp_size = tp;
    c.tp_rank = rank;
    c.softmax_scale = static_cast<float>(g_.number("sm_scale"));
    c.num_speculative_tokens = g_.integer("num_spec_tokens");
    c.max_model_len = cos_sin_.shape[0];
    c.max_num_batched_tokens = tokens_;
    c.max_num_requests = request_.shape[0];
    c.window_format = kv_format(g_.text("window_format"));
    c.compressed_format =
        g_.text("compressed_format") == "none" ? MEGAMLA_KV_NONE : kv_format(g_.text("compressed_format"));
    if (topk_.ndim == 2) c.index_topk = topk_.shape[1];
    megamla_layer* made = nullptr;
    expect_ok(megamla_layer_create(&c, run_.device(), &made));
    layer_.reset(made);
    const Status loaded = load_seeded(made, model_, layer_id_, static_cast<uint64_t>(g_.integer("seed")));
    if (!loaded.ok()) throw CaseError(loaded.message());
    int64_t bytes = 0;
    expect_ok(megamla_layer_workspace_size(made, run_.device(), run_.exec.num_threads, &bytes));
    megamla_workspace* workspace = nullptr;
    void* buffer = run_.arena().on_device(run_.arena().bytes(bytes, 0xa5));
    expect_ok(megamla_workspace_create(buffer, bytes, nullptr, nullptr, &workspace));
    workspace_.reset(workspace);
    if (source_ && c.compress_ratio == 2) {
      int64_t blocks = 1;
      for (int64_t r = 0; r < state_block_.shape[0]; ++r)
        blocks = std::max<int64_t>(blocks, at<const int32_t>(state_block_, r) + 1);
      state_ = run_.arena().tensor(MEGAMLA_F32, {blocks, g_.integer("state_capacity"), 2 * kDims}, 0xff);
    }
  }

  // What the source layer wrote for the rows of this step.
  void write_source_records(int64_t s) {
    const megamla_tensor tokens = g_.input("in.compressed_token");
    const megamla_tensor records = g_.input("in.compressed_record");
    for (int64_t i = 0; i < tokens.shape[0]; ++i) {
      const int64_t t = at<const int32_t>(tokens, i);
      if (t < at<const int32_t>(step_tokens_, s) || t >= at<const int32_t>(step_tokens_, s + 1)) continue;
      write_record(compressed_cache(), at<const int64_t>(compressed_slots_, t), &at<const uint8_t>(records, i, 0));
    }
  }

  megamla_tensor table_rows(const megamla_tensor& table, int64_t first, int64_t count) {
    const megamla_tensor rows = run_.arena().tensor(MEGAMLA_I32, {count, table.shape[1]});
    for (int64_t r = 0; r < count; ++r) {
      const int64_t id = at<const int32_t>(request_, first + r);
      for (int64_t b = 0; b < table.shape[1]; ++b) at<int32_t>(rows, r, b) = at<const int32_t>(table, id, b);
    }
    return rows;
  }

  void step(int64_t s, LayerResults& results) {
    const int64_t begin = at<const int32_t>(step_tokens_, s);
    const int64_t end = at<const int32_t>(step_tokens_, s + 1);
    const int64_t first = at<const int32_t>(step_requests_, s);
    const int64_t requests = at<const int32_t>(step_requests_, s + 1) - first;
    megamla_step_metadata m;
    megamla_step_metadata_init(&m);
    m.step_id = static_cast<uint64_t>(s) + 1;
    m.query_start_loc = run_.arena().tensor(MEGAMLA_I32, {requests + 1});
    m.seq_lens = run_.arena().tensor(MEGAMLA_I32, {requests});
    for (int64_t r = 0; r < requests; ++r) {
      at<int32_t>(m.query_start_loc, r + 1) =
          at<const int32_t>(m.query_start_loc, r) + at<const int32_t>(query_len_, first + r);
      at<int32_t>(m.seq_lens, r) = at<const int32_t>(seq_len_, first + r);
    }
    for (int64_t t = begin; t < begin + at<const int32_t>(m.query_start_loc, requests); ++t) real_rows_.push_back(t);
    m.positions = slice(positions_, begin, end);
    m.slot_mapping = slice(slots_, begin, end);
    m.window_table = table_rows(window_table_, first, requests);
    if (present(compressed_table_)) m.compressed_table = table_rows(compressed_table_, first, requests);
    if (present(compressed_slots_)) m.compressed_slot_mapping = slice(compressed_slots_, begin, end);
    if (present(state_block_)) {
      m.state_block = run_.arena().tensor(MEGAMLA_I32, {requests});
      for (int64_t r = 0; r < requests; ++r) {
        at<int32_t>(m.state_block, r) = at<const int32_t>(state_block_, at<const int32_t>(request_, first + r));
      }
    }
    if (present(topk_)) m.topk = slice(topk_, begin, end);

    megamla_forward_params p;
    megamla_forward_params_init(&p);
    p.x = run_.arena().tensor(MEGAMLA_BF16, {end - begin, model_.hidden_size});
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(&at<uint16_t>(p.x, t - begin, 0), &at<const uint16_t>(x_rows_, at<const int32_t>(x_index_, t), 0),
                  static_cast<size_t>(model_.hidden_size) * 2);
    }
    p.y = slice(results.y, begin, end);
    p.cos_sin = cos_sin_;
    p.window = window_cache();
    p.compressed = compressed_cache();
    p.compressor_state = state_;
    p.metadata = &m;
    const megamla_layer_taps taps = results.taps(begin, end);
    p.taps = &taps;
    p.workspace = workspace_.get();
    const app::LayerCall call(p, run_.arena());
    run_.arena().upload();
    expect_ok(megamla_layer_forward(layer_.get(), &call.params(), &run_.exec));
    run_.arena().download();
  }

  std::vector<int64_t> real_rows() const { return real_rows_; }

  Run& run_;
  Case& g_;
  io::ModelConfig model_;
  int64_t layer_id_;
  bool source_, consumer_;
  int64_t tokens_ = 0;
  megamla_tensor x_rows_, x_index_, step_tokens_, step_requests_, request_, query_len_, seq_len_, positions_, slots_;
  megamla_tensor window_table_, compressed_slots_, compressed_table_, state_block_, topk_, cos_sin_;
  megamla_tensor pool_{}, state_{};
  LayerHandle layer_;
  WorkspaceHandle workspace_;
  std::vector<int64_t> real_rows_;
};

}  // namespace

void run_layer(Run& run) {
  run.verdict.used("layer");
  LayerCase layer(run);
  layer.steps(1, 0);
  layer.ranks();
}

}  // namespace megamla::check
