// A decode step that is recorded once and run again with other lengths, tables and numbers of requests: a CUDA graph,
// on a CPU the same call again.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "support/layer_batch.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kRows = 4;

// The call of a step, bound to its buffers.
class Recorded {
 public:
  Recorded(Batch& batch, megamla_layer* layer, const megamla_forward_params& params)
      : batch_(batch), layer_(layer), call_(params, batch.arena()) {
    batch.arena().upload();
    run();  // brings the kernels to the GPU
    if (batch.execution().device == MEGAMLA_DEVICE_CUDA) graph_.emplace([this] { run(); });
  }
  void replay() {
    batch_.arena().upload();
    if (graph_.has_value()) {
      graph_->replay();
    } else {
      run();
    }
    batch_.arena().download();
  }

 private:
  void run() {
    const megamla_exec exec = batch_.execution();
    EXPECT_EQ(megamla_layer_forward(layer_, &call_.params(), &exec), MEGAMLA_OK) << megamla_last_error();
  }

  Batch& batch_;
  megamla_layer* layer_;
  app::LayerCall call_;
  std::optional<app::gpu::Graph> graph_;
};

// Rows `first` .. are not needed: what the contract asks of them, and nothing else, is set.
void release_rows(const Batch::Step& s, int64_t first) {
  for (int64_t t = first; t < kRows; ++t) {
    at<int64_t>(s.metadata.slot_mapping, t) = at<int64_t>(s.metadata.compressed_slot_mapping, t) = -1;
    at<int32_t>(s.metadata.state_block, t) = 0;
    at<int32_t>(s.metadata.query_start_loc, t + 1) = static_cast<int32_t>(t + 1);
  }
}

// Rows that no step has used yet hold anything.
void spoil(const Batch::Step& s) {
  for (int64_t t = 0; t < kRows; ++t) {
    at<int32_t>(s.metadata.seq_lens, t) = 200;
    at<int64_t>(s.metadata.positions, t) = t % 2 == 0 ? int64_t{1} << 40 : -7;
    for (int64_t b = 0; b < 8; ++b) at<int32_t>(s.metadata.window_table, t, b) = b % 2 == 0 ? INT32_MAX : -3;
    for (int64_t b = 0; b < 4; ++b) at<int32_t>(s.metadata.compressed_table, t, b) = INT32_MAX;
    for (int64_t d = 0; d < kHidden; ++d) at<uint16_t>(s.x, t, d) = 0x7fc0;  // NaN
  }
}

bool same_bytes(const megamla_kv_cache& a, const megamla_kv_cache& b) {
  return std::memcmp(a.data, b.data, static_cast<size_t>(a.num_pages * a.page_stride)) == 0;
}

class LayerGraph : public LayerOn {};
MEGAMLA_LAYER_ON_EACH_DEVICE(LayerGraph);

TEST_P(LayerGraph, FollowsWhatTheBuffersHold) {
  for (const int64_t id : {0, 2, 20}) {
    SCOPED_TRACE("layer " + std::to_string(id));
    megamla_layer_config c = narrow_config(id);
    c.batch_invariant = 1;  // a row's bits do not depend on how many rows there are
    const LayerHandle layer = make_layer(c, device());
    Batch plain(c, device());
    Batch recorded(c, device());
    plain.step(layer.get(), kPrompts);
    recorded.step(layer.get(), kPrompts);
    const Batch::Step bucket = recorded.make_step(kRows, kRows);
    spoil(bucket);
    release_rows(bucket, 0);
    megamla_workspace_lock(recorded.workspace());
    Recorded call(recorded, layer.get(), recorded.params(bucket));
    EXPECT_TRUE(same_bytes(plain.window(), recorded.window())) << "a step without slots writes no cache";
    for (const Pieces& pieces :
         {Pieces{{0, 21, 1}, {1, 34, 1}}, Pieces{{1, 35, 1}}, Pieces{{1, 36, 1}, {0, 22, 1}}, Pieces{{0, 23, 1}}}) {
      const auto used = static_cast<int64_t>(pieces.size());
      recorded.fill(bucket, pieces);
      release_rows(bucket, used);
      call.replay();
      const megamla_tensor y = plain.step(layer.get(), pieces);
      EXPECT_EQ(std::memcmp(y.data, bucket.y.data, static_cast<size_t>(used * kHidden) * sizeof(float)), 0);
      for (int64_t i = used * kHidden; i < kRows * kHidden; ++i) ASSERT_EQ(data<const float>(bucket.y)[i], 0) << i;
    }
    EXPECT_TRUE(same_bytes(plain.window(), recorded.window()));
    EXPECT_TRUE(c.compress_ratio == 0 || same_bytes(plain.compressed(), recorded.compressed()));
  }
}

}  // namespace
}  // namespace megamla::test
