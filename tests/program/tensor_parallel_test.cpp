// Sums over tensor-parallel ranks: what is refused, and two GPUs against one. Where there is one GPU or none, the ranks
// run one after the other (layer_test).
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>

#include "support/layer_batch.hpp"

namespace megamla::test {
namespace {

struct Destroy {
  void operator()(megamla_communicator* c) const { megamla_communicator_destroy(c); }
};
using Communicator = std::unique_ptr<megamla_communicator, Destroy>;
using Id = std::array<char, MEGAMLA_COMMUNICATOR_ID_BYTES>;

TEST(TensorParallel, BadArgumentsNameWhatIsWrong) {
  megamla_communicator* made = nullptr;
  const Id id{};
  EXPECT_EQ(megamla_communicator_create(nullptr, 2, 0, 0, &made), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_communicator_create(id.data(), 2, 2, 0, &made), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("rank: expected a value in [0, 1], got 2"), std::string::npos);
  EXPECT_EQ(megamla_communicator_make_id(nullptr), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_all_reduce(nullptr, nullptr, nullptr), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(megamla_reduce_scatter(nullptr, nullptr, nullptr, nullptr), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
  megamla_communicator_destroy(nullptr);
}

TEST(TensorParallel, AHostLayerLeavesTheSumToItsCaller) {
  const megamla_layer_config c = narrow_config(20, 2, 1);
  const LayerHandle layer = make_layer(c);
  Batch batch(c);
  const Batch::Step s = batch.make_step(2, 1);
  batch.fill(s, {{0, 0, 2}});
  megamla_forward_params p = batch.params(s);
  p.reduce = MEGAMLA_REDUCE_ALL;
  EXPECT_EQ(batch.forward(layer.get(), p), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("reduce: expected none where the layer is not on a GPU"),
            std::string::npos)
      << megamla_last_error();
  p.reduce = 3;
  EXPECT_EQ(batch.forward(layer.get(), p), MEGAMLA_INVALID_ARGUMENT);
}

bool use_gpu(int32_t index) {
  app::gpu::choose_device(index);
  try {
    app::gpu::require();
  } catch (const app::InputError&) {
    return false;
  }
  return true;
}

// One of two ranks, in a thread and on a GPU of its own. `expected`: y of the whole for kPrompts, and for kMixed.
void run_rank(const Id& id, int32_t rank, const std::array<megamla_tensor, 2>& expected) {
  ASSERT_TRUE(use_gpu(rank));
  megamla_communicator* made = nullptr;
  ASSERT_EQ(megamla_communicator_create(id.data(), 2, rank, rank, &made), MEGAMLA_OK) << megamla_last_error();
  const Communicator ranks(made);
  const megamla_layer_config c = narrow_config(2, 2, rank);
  const LayerHandle layer = make_layer(c, MEGAMLA_DEVICE_CUDA);
  Batch batch(c, MEGAMLA_DEVICE_CUDA);
  const auto step = [&](const Pieces& pieces, int64_t tokens) {
    const Batch::Step s = batch.make_step(tokens, static_cast<int64_t>(pieces.size()));
    batch.fill(s, pieces);
    return s;
  };

  const Batch::Step prompts = step(kPrompts, 55);
  megamla_forward_params p = batch.params(prompts);
  p.reduce = MEGAMLA_REDUCE_ALL;
  p.communicator = made;
  ASSERT_EQ(batch.forward(layer.get(), p), MEGAMLA_OK) << megamla_last_error();
  EXPECT_LT(relative_difference(prompts.y, expected[0]), 5e-3);

  // Again the same step, now as a graph with the sum in it.
  const app::LayerCall call(p, batch.arena());
  const megamla_exec exec = batch.execution();
  const app::gpu::Graph graph(
      [&] { EXPECT_EQ(megamla_layer_forward(layer.get(), &call.params(), &exec), MEGAMLA_OK); });
  std::fill_n(data<float>(prompts.y), 55 * kHidden, -1.0F);
  batch.arena().upload();
  graph.replay();
  batch.arena().download();
  EXPECT_LT(relative_difference(prompts.y, expected[0]), 5e-3);

  const Batch::Step mixed = step(kMixed, 10);
  p = batch.params(mixed);
  p.y = batch.arena().tensor(MEGAMLA_BF16, {5, kHidden});
  p.reduce = MEGAMLA_REDUCE_SCATTER;
  p.communicator = made;
  ASSERT_EQ(batch.forward(layer.get(), p), MEGAMLA_OK) << megamla_last_error();
  const megamla_tensor mine = batch.arena().tensor(MEGAMLA_F32, {5, kHidden});
  for (int64_t i = 0; i < 5 * kHidden; ++i) data<float>(mine)[i] = format::to_float({data<const uint16_t>(p.y)[i]});
  EXPECT_LT(relative_difference(mine, slice(expected[1], 5 * rank, 5 * rank + 5)), 1e-2);
}

TEST(TensorParallel, TwoGpusSumToTheWhole) {
  const bool two = use_gpu(1);
  const bool one = use_gpu(0);
  if (!one || !two) GTEST_SKIP() << "expected two GPUs that the kernels run on, found " << (one ? 1 : 0);
  if (megamla_communicator_supported() != MEGAMLA_OK) GTEST_SKIP() << megamla_last_error();
  const megamla_layer_config whole = narrow_config(2);
  const LayerHandle layer = make_layer(whole, MEGAMLA_DEVICE_CUDA);
  Batch batch(whole, MEGAMLA_DEVICE_CUDA);
  const megamla_tensor prompts = batch.step(layer.get(), kPrompts);
  const std::array<megamla_tensor, 2> expected = {prompts, batch.step(layer.get(), kMixed)};
  Id id{};
  ASSERT_EQ(megamla_communicator_make_id(id.data()), MEGAMLA_OK) << megamla_last_error();
  std::thread other([&] { run_rank(id, 1, expected); });
  std::thread first([&] { run_rank(id, 0, expected); });
  first.join();
  other.join();
}

}  // namespace
}  // namespace megamla::test
