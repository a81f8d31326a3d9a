// Steps of a narrow layer: 64 heads x 512 over a hidden size of 256, so that its weights take milliseconds. For
// tests/program: the buffers are the program's, and lie where the device under test reads them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "arena.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "gpu.hpp"
#include "layer_call.hpp"
#include "megamla/rope_table.h"
#include "model/seeded_layer.hpp"

namespace megamla::test {

constexpr int64_t kHidden = 256;
constexpr int64_t kMaxTokens = 64;
constexpr int64_t kMaxContext = 256;

inline io::ModelConfig narrow_model() {
  io::ModelConfig model = io::deepseek_v41_flash();
  model.hidden_size = kHidden;
  model.q_lora_rank = 64;
  model.o_lora_rank = 64;
  model.index_topk = 16;
  return model;
}

inline megamla_layer_config narrow_config(int64_t layer, int64_t tp = 1, int64_t rank = 0) {
  megamla_layer_config c = layer_config(narrow_model(), layer);
  c.tp_size = tp;
  c.tp_rank = rank;
  c.max_model_len = kMaxContext;
  c.max_num_batched_tokens = kMaxTokens;
  c.max_num_requests = 8;
  return c;
}

inline LayerHandle make_layer(megamla_layer_config c, megamla_device device = MEGAMLA_DEVICE_CPU) {
  if (device == MEGAMLA_DEVICE_CUDA) c.cuda_device = app::gpu::device();
  megamla_layer* made = nullptr;
  EXPECT_EQ(megamla_layer_create(&c, device, &made), MEGAMLA_OK) << megamla_last_error();
  LayerHandle handle(made);
  const Status loaded = load_seeded(made, narrow_model(), c.layer_id, 7);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  return handle;
}

// Caches, tables and buffers of two requests; request r owns window pages 8r.. and compressed pages 4r...
class Batch {
 public:
  explicit Batch(const megamla_layer_config& c, megamla_device device = MEGAMLA_DEVICE_CPU)
      : config_(c), device_(device), arena_(device) {
    window_ = cache(c.window_format, 32, kWindowPages);
    if (c.compress_ratio > 0) compressed_ = cache(c.compressed_format, 64, kPages);
    prepare();
  }
  // A layer that reads the compressed rows of `source`, which lives longer.
  Batch(const megamla_layer_config& c, megamla_device device, Batch& source)
      : config_(c), device_(device), arena_(&source.arena_), compressed_(source.compressed_) {
    window_ = cache(c.window_format, 32, kWindowPages);
    prepare();
  }

  struct Piece {
    int64_t request, first, count;
  };
  using Pieces = std::vector<Piece>;

  // x and metadata of `tokens` rows and `requests` requests, and y.
  struct Step {
    megamla_tensor x, y;
    megamla_step_metadata metadata;
  };
  Step make_step(int64_t tokens, int64_t requests) {
    Step s{};
    megamla_step_metadata& m = s.metadata;
    megamla_step_metadata_init(&m);
    m.query_start_loc = arena_.tensor(MEGAMLA_I32, {requests + 1});
    m.seq_lens = arena_.tensor(MEGAMLA_I32, {requests});
    m.positions = arena_.tensor(MEGAMLA_I64, {tokens});
    m.slot_mapping = arena_.tensor(MEGAMLA_I64, {tokens}, 0xff);
    m.compressed_slot_mapping = arena_.tensor(MEGAMLA_I64, {tokens}, 0xff);
    m.window_table = arena_.tensor(MEGAMLA_I32, {requests, 8});
    m.compressed_table = arena_.tensor(MEGAMLA_I32, {requests, 4});
    m.state_block = arena_.tensor(MEGAMLA_I32, {requests});
    s.x = arena_.tensor(MEGAMLA_BF16, {tokens, kHidden});
    s.y = arena_.tensor(MEGAMLA_F32, {tokens, kHidden}, 0xa5);
    return s;
  }

  // Rows and requests of the pieces, from row and request 0; what lies behind them stays.
  void fill(const Step& s, const Pieces& pieces) const {
    const megamla_step_metadata& m = s.metadata;
    int64_t t = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      const auto r = static_cast<int64_t>(i);
      at<int32_t>(m.seq_lens, r) = static_cast<int32_t>(piece.first + piece.count);
      at<int32_t>(m.state_block, r) = static_cast<int32_t>(piece.request + 1);
      for (int64_t b = 0; b < 8; ++b) at<int32_t>(m.window_table, r, b) = static_cast<int32_t>(piece.request * 8 + b);
      for (int64_t b = 0; b < 4; ++b)
        at<int32_t>(m.compressed_table, r, b) = static_cast<int32_t>(piece.request * 4 + b);
      for (int64_t k = 0; k < piece.count; ++k, ++t) fill_row(s, piece.request, piece.first + k, t);
      at<int32_t>(m.query_start_loc, r + 1) = static_cast<int32_t>(t);
    }
  }

  // Rows of the pieces in order, `padding` rows after them; y F32.
  megamla_tensor step(megamla_layer* layer, const Pieces& pieces, int64_t padding = 0, uint64_t step_id = 0,
                      megamla_status expected = MEGAMLA_OK) {
    int64_t tokens = padding;
    for (const Piece& piece : pieces) tokens += piece.count;
    Step s = make_step(tokens, static_cast<int64_t>(pieces.size()));
    fill(s, pieces);
    s.metadata.step_id = step_id != 0 ? step_id : ++steps_;
    const megamla_forward_params p = params(s);
    EXPECT_EQ(forward(layer, p), expected) << megamla_last_error();
    return s.y;
  }

  megamla_forward_params params(const Step& s) const {
    megamla_forward_params p;
    megamla_forward_params_init(&p);
    p.x = s.x;
    p.y = s.y;
    p.cos_sin = cos_sin_;
    p.window = window_;
    p.compressed = compressed_;
    if (config_.compress_ratio == 2) p.compressor_state = state_;
    p.metadata = &s.metadata;
    p.workspace = workspace_.get();
    return p;
  }
  // With all buffers copied to the device and back.
  megamla_status forward(megamla_layer* layer, const megamla_forward_params& p) {
    const app::LayerCall call(p, arena_);
    arena_.upload();
    const megamla_exec exec = execution();
    const megamla_status status = megamla_layer_forward(layer, &call.params(), &exec);
    arena_.download();
    return status;
  }
  megamla_exec execution() const {
    megamla_exec exec = MEGAMLA_EXEC_INIT;
    exec.device = device_;
    if (device_ == MEGAMLA_DEVICE_CUDA) exec.stream = app::gpu::stream();
    return exec;
  }
  const megamla_kv_cache& compressed() const { return compressed_; }
  app::Arena& arena() { return arena_; }
  megamla_workspace* workspace() { return workspace_.get(); }
  megamla_kv_cache window() const { return window_; }

 private:
  static constexpr int64_t kWindowPages = 16;
  static constexpr int64_t kPages = 8;

  void prepare() {
    state_ = arena_.tensor(MEGAMLA_F32, {3, 8, 1024}, 0xff);
    cos_sin_ = arena_.tensor(MEGAMLA_F32, {kMaxContext, 64});
    megamla_rope_table_params rope;
    megamla_rope_table_init(&rope);
    rope.cos_sin = app::on_host(cos_sin_);
    EXPECT_EQ(megamla_rope_table(&rope, nullptr), MEGAMLA_OK);
    megamla_workspace* made = nullptr;
    EXPECT_EQ(megamla_workspace_create(nullptr, 0, grow, &arena_, &made), MEGAMLA_OK);
    workspace_.reset(made);
  }
  static void* grow(void* context, void*, int64_t bytes) {
    auto* arena = static_cast<app::Arena*>(context);
    return arena->on_device(arena->bytes(bytes, 0xff));
  }
  megamla_kv_cache cache(int32_t kind, int64_t page, int64_t pages) {
    const int64_t stride = page * 640;
    return {
        arena_.bytes(stride * pages, 0xff), pages, stride, page, kind, MEGAMLA_PAGE_PLANAR, arena_.cuda_device(), 0};
  }
  void fill_row(const Step& s, int64_t request, int64_t position, int64_t t) const {
    const megamla_step_metadata& m = s.metadata;
    at<int64_t>(m.positions, t) = position;
    at<int64_t>(m.slot_mapping, t) = request * kMaxContext + position;
    const int64_t ratio = std::max<int64_t>(config_.compress_ratio, 1);
    at<int64_t>(m.compressed_slot_mapping, t) =
        (position + 1) % ratio == 0 ? request * kMaxContext + position / ratio : -1;
    for (int64_t d = 0; d < kHidden; ++d) {
      const auto value = static_cast<float>(
          std::sin(0.37 * static_cast<double>((position + 1) * (d + 1)) + static_cast<double>(request)));
      at<format::Bf16>(s.x, t, d) = format::to_bf16(value);
    }
  }

  megamla_layer_config config_;
  megamla_device device_;
  app::Arena arena_;
  megamla_kv_cache window_{}, compressed_{};
  megamla_tensor state_{}, cos_sin_{};
  WorkspaceHandle workspace_;
  uint64_t steps_ = 100;
};

// A layer's steps on each device; on cuda only where there is a GPU that the kernels run on.
class LayerOn : public testing::TestWithParam<megamla_device> {
 public:
  static std::string label(const testing::TestParamInfo<megamla_device>& info) {
    return info.param == MEGAMLA_DEVICE_CUDA ? "cuda" : "cpu";
  }

 protected:
  void SetUp() override {
    if (device() != MEGAMLA_DEVICE_CUDA) return;
    try {
      app::gpu::require();
    } catch (const app::InputError& error) {
      GTEST_SKIP() << "no GPU: " << error.what();
    }
  }
  static megamla_device device() { return GetParam(); }
};

inline double relative_difference(const megamla_tensor& a, const megamla_tensor& b) {
  double difference = 0;
  double squares = 0;
  for (int64_t i = 0; i < a.shape[0] * a.shape[1]; ++i) {
    const double x = data<const float>(a)[i];
    const double y = data<const float>(b)[i];
    difference += (x - y) * (x - y);
    squares += y * y;
  }
  EXPECT_GT(squares, 0);
  return std::sqrt(difference / squares);
}

using Pieces = Batch::Pieces;
inline const Pieces kPrompts = {{0, 0, 21}, {1, 0, 34}};
inline const Pieces kMixed = {{0, 21, 1}, {1, 34, 9}};

}  // namespace megamla::test

#define MEGAMLA_LAYER_ON_EACH_DEVICE(fixture) \
  INSTANTIATE_TEST_SUITE_P(Each, fixture, testing::Values(MEGAMLA_DEVICE_CPU, MEGAMLA_DEVICE_CUDA), fixture::label)
