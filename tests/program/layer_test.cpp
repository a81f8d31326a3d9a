// MegaAttentionLayer: loading, warm-up, the two prefill paths, shared gathered rows, tensor parallelism.
// Geometry: 64 heads x 512 over a narrow model (support/layer_batch.hpp); golden_test has the full width.
#include <gtest/gtest.h>

#include <cstring>

#include "support/layer_batch.hpp"

namespace megamla::test {
namespace {

MEGAMLA_LAYER_ON_EACH_DEVICE(LayerOn);

TEST(Layer, KvDtypeIsResolvedOrRefusedByName) {
  megamla_kv_format window{};
  megamla_kv_format compressed{};
  for (const char* name : {"auto", "fp8"}) {
    ASSERT_EQ(megamla_resolve_kv_dtype(name, MEGAMLA_DEVICE_CPU, &window, &compressed), MEGAMLA_OK);
    EXPECT_EQ(window, MEGAMLA_KV_FP8_528);
    EXPECT_EQ(compressed, MEGAMLA_KV_NVFP4_288);
  }
  ASSERT_EQ(megamla_resolve_kv_dtype("fp8_584", MEGAMLA_DEVICE_CPU, &window, &compressed), MEGAMLA_OK);
  EXPECT_EQ(window, MEGAMLA_KV_FP8_584);
  EXPECT_EQ(megamla_resolve_kv_dtype("int8", MEGAMLA_DEVICE_CPU, &window, &compressed), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("'int8'"), std::string::npos);
}

TEST(Layer, LoadTakesPairsAndNamesWhatIsMissing) {
  const megamla_layer_config c = narrow_config(20);
  megamla_layer* made = nullptr;
  ASSERT_EQ(megamla_layer_create(&c, MEGAMLA_DEVICE_CPU, &made), MEGAMLA_OK);
  const LayerHandle layer(made);
  EXPECT_EQ(megamla_layer_is_loaded(made), MEGAMLA_INVALID_ARGUMENT);
  std::vector<uint8_t> bytes(static_cast<size_t>(512 * kHidden));
  megamla_named_tensor tensor{"wkv.weight", host_tensor(bytes.data(), MEGAMLA_F8_E4M3, {512, kHidden})};
  EXPECT_EQ(megamla_layer_load(made, &tensor, 1), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("expected together with wkv.scale"), std::string::npos);
  tensor = {"wkv.bias", host_tensor(bytes.data(), MEGAMLA_F8_E4M3, {512, kHidden})};
  EXPECT_EQ(megamla_layer_load(made, &tensor, 1), MEGAMLA_INVALID_ARGUMENT);
  tensor = {"compressor.wgate.weight", host_tensor(bytes.data(), MEGAMLA_BF16, {1, 1})};
  EXPECT_EQ(megamla_layer_load(made, &tensor, 1), MEGAMLA_INVALID_ARGUMENT) << "ratio 1 has no gate";
  std::vector<float> scale(16 * 8);
  const megamla_named_tensor pair[] = {{"wkv.weight", host_tensor(bytes.data(), MEGAMLA_F8_E4M3, {512, kHidden})},
                                       {"wkv.scale", host_tensor(scale.data(), MEGAMLA_F32, {16, 8})}};
  EXPECT_EQ(megamla_layer_load(made, pair, 2), MEGAMLA_INVALID_ARGUMENT) << "fp32 scales";
  EXPECT_NE(std::string(megamla_last_error()).find("wkv.scale: expected F8_E8M0 [16, 8], got F32"), std::string::npos);
  Batch batch(c);
  batch.step(made, kPrompts, 0, 0, MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("expected before the first step"), std::string::npos);
}

TEST_P(LayerOn, WarmUpReservesWritesZerosAndRegistersEachVariantOnce) {
  const megamla_layer_config c = narrow_config(20);
  const LayerHandle first = make_layer(c, device());
  const LayerHandle second = make_layer(c, device());
  Batch batch(c, device());
  megamla_forward_params p = batch.params(batch.make_step(5, 0));
  p.metadata = nullptr;
  ASSERT_EQ(batch.forward(first.get(), p), MEGAMLA_OK) << megamla_last_error();
  for (int64_t i = 0; i < 5 * kHidden; ++i) ASSERT_EQ(data<const float>(p.y)[i], 0);
  const int64_t variants = megamla_warmed_variant_count();
  EXPECT_GE(variants, 1);
  ASSERT_EQ(batch.forward(second.get(), p), MEGAMLA_OK);
  EXPECT_EQ(megamla_warmed_variant_count(), variants);
  int64_t bytes = 0;
  ASSERT_EQ(megamla_layer_workspace_size(first.get(), device(), 0, &bytes), MEGAMLA_OK);
  EXPECT_EQ(megamla_workspace_bytes(batch.workspace()), bytes);
  // Every later step fits: nothing grows once it is locked.
  megamla_workspace_lock(batch.workspace());
  batch.step(first.get(), kPrompts);
  batch.step(first.get(), kMixed, 3);
  EXPECT_EQ(megamla_workspace_bytes(batch.workspace()), bytes);
}

TEST_P(LayerOn, GatheredAndPagedPrefillAgree) {
  for (const int64_t id : {0, 2, 20}) {
    megamla_tensor y[2];
    std::vector<std::unique_ptr<Batch>> batches;
    for (const int32_t path : {MEGAMLA_PREFILL_GATHERED, MEGAMLA_PREFILL_PAGED}) {
      megamla_layer_config c = narrow_config(id);
      c.prefill_path = path;
      if (megamla_layer_is_supported(&c, device()) != MEGAMLA_OK) GTEST_SKIP() << megamla_last_error();
      const LayerHandle layer = make_layer(c, device());
      batches.push_back(std::make_unique<Batch>(c, device()));
      batches.back()->step(layer.get(), kPrompts);
      y[path - 1] = batches.back()->step(layer.get(), kMixed, 2);
    }
    // Two kernels' results before the cast differ by a bf16 rounding here and there: some FP8 codes are neighbours.
    EXPECT_LT(relative_difference(y[0], y[1]), 1.5e-2) << "layer " << id;
  }
}

TEST_P(LayerOn, AgreesWithTheReference) {
  for (const int64_t id : {0, 2, 20}) {
    const megamla_layer_config c = narrow_config(id);
    const LayerHandle layer = make_layer(c, device());
    const LayerHandle truth = make_layer(c);
    Batch tested(c, device());
    Batch reference(c, MEGAMLA_DEVICE_REFERENCE);
    for (const Pieces& pieces : {kPrompts, kMixed}) {
      const megamla_tensor y = tested.step(layer.get(), pieces);
      EXPECT_LT(relative_difference(y, reference.step(truth.get(), pieces)), 2e-2) << id;
    }
  }
}

TEST_P(LayerOn, RanksSumToTheWhole) {
  const megamla_layer_config whole = narrow_config(2);
  const LayerHandle layer = make_layer(whole, device());
  Batch batch(whole, device());
  batch.step(layer.get(), kPrompts);
  const megamla_tensor y = batch.step(layer.get(), kMixed);
  for (const int64_t tp : {2, 4, 8}) {
    Batch sums(whole, device());
    const megamla_tensor sum = sums.arena().tensor(MEGAMLA_F32, {y.shape[0], kHidden});
    for (int64_t rank = 0; rank < tp; ++rank) {
      const megamla_layer_config c = narrow_config(2, tp, rank);
      const LayerHandle part = make_layer(c, device());
      Batch own(c, device());
      own.step(part.get(), kPrompts);
      const megamla_tensor y_rank = own.step(part.get(), kMixed);
      for (int64_t i = 0; i < y.shape[0] * kHidden; ++i) data<float>(sum)[i] += data<const float>(y_rank)[i];
    }
    // On a CPU z of a rank has the bits of the whole's and only the order of wo_b's sums differs. On a GPU attention's
    // sums, too, depend on the number of heads: a few codes of the output pair are others.
    EXPECT_LT(relative_difference(sum, y), device() == MEGAMLA_DEVICE_CUDA ? 5e-3 : 1e-4) << "TP " << tp;
  }
}

TEST_P(LayerOn, ConsumerReadsItsSourceAndReusesGatheredRows) {
  megamla_layer_config source_config = narrow_config(2);
  megamla_layer_config consumer_config = narrow_config(3);
  source_config.prefill_path = consumer_config.prefill_path = MEGAMLA_PREFILL_GATHERED;
  if (megamla_layer_is_supported(&source_config, device()) != MEGAMLA_OK) GTEST_SKIP() << megamla_last_error();
  const LayerHandle source = make_layer(source_config, device());
  const LayerHandle consumer = make_layer(consumer_config, device());
  Batch rows(source_config, device());
  rows.step(source.get(), kPrompts, 0, 1);

  Batch alone(consumer_config, device(), rows);
  const megamla_tensor expected = alone.step(consumer.get(), kPrompts, 0, 1);
  // The same step right after the source in one workspace: its gathered compressed rows serve the consumer.
  Batch together(source_config, device());
  together.step(source.get(), kPrompts, 0, 1);
  const megamla_tensor y = together.step(consumer.get(), kPrompts, 0, 1);
  EXPECT_EQ(std::memcmp(y.data, expected.data, static_cast<size_t>(y.shape[0] * kHidden) * sizeof(float)), 0);
}

TEST_P(LayerOn, QuantisedZIsCloseToBf16) {
  megamla_layer_config c = narrow_config(20);
  const LayerHandle exact = make_layer(c, device());
  Batch a(c, device());
  const megamla_tensor y = a.step(exact.get(), kPrompts);
  c.quantize_z = 1;
  const LayerHandle quantised = make_layer(c, device());
  Batch b(c, device());
  EXPECT_LT(relative_difference(b.step(quantised.get(), kPrompts), y), 0.045);
}

TEST_P(LayerOn, PaddingRowsAreZeroAndChangeNothing) {
  const megamla_layer_config c = narrow_config(20);
  const LayerHandle layer = make_layer(c, device());
  Batch plain(c, device());
  Batch padded(c, device());
  const megamla_tensor y = plain.step(layer.get(), kPrompts);
  const megamla_tensor more = padded.step(layer.get(), kPrompts, 5);
  EXPECT_EQ(std::memcmp(y.data, more.data, static_cast<size_t>(y.shape[0] * kHidden) * sizeof(float)), 0);
  for (int64_t i = y.shape[0] * kHidden; i < more.shape[0] * kHidden; ++i) ASSERT_EQ(data<const float>(more)[i], 0);
}

// However a prompt is cut and whatever else is in its steps.
TEST_P(LayerOn, BatchInvariantRowsHaveTheSameBits) {
  for (const int64_t id : {0, 2, 20}) {
    SCOPED_TRACE("layer " + std::to_string(id));
    megamla_layer_config c = narrow_config(id);
    c.batch_invariant = 1;
    const LayerHandle layer = make_layer(c, device());
    Batch whole(c, device());
    const megamla_tensor y = whole.step(layer.get(), {{0, 0, 21}, {1, 0, 36}});
    const auto same = [&](const megamla_tensor& got, int64_t row, int64_t expected, int64_t count) {
      return std::memcmp(&at<float>(got, row, 0), &at<float>(y, expected, 0),
                         static_cast<size_t>(count * kHidden) * sizeof(float)) == 0;
    };
    Batch alone(c, device());
    EXPECT_TRUE(same(alone.step(layer.get(), {{1, 0, 36}}), 0, 21, 36));
    Batch cut(c, device());
    cut.step(layer.get(), {{1, 0, 1}});
    EXPECT_TRUE(same(cut.step(layer.get(), {{1, 1, 1}, {0, 0, 20}}), 0, 22, 1));
    const megamla_tensor next = cut.step(layer.get(), {{0, 20, 1}, {1, 2, 30}}, 3);
    EXPECT_TRUE(same(next, 0, 20, 1));
    EXPECT_TRUE(same(next, 1, 23, 30));
    EXPECT_TRUE(same(cut.step(layer.get(), {{1, 32, 4}}), 0, 53, 4));
  }
}

TEST_P(LayerOn, EmptyStepsSucceed) {
  const megamla_layer_config c = narrow_config(2);
  const LayerHandle layer = make_layer(c, device());
  Batch batch(c, device());
  batch.step(layer.get(), {});
  batch.step(layer.get(), {{0, 0, 0}, {1, 0, 3}, {0, 0, 0}});
  batch.step(layer.get(), {}, 4);
}

TEST_P(LayerOn, ReloadGivesTheSameBits) {
  const megamla_layer_config c = narrow_config(2);
  const LayerHandle layer = make_layer(c, device());
  Batch first(c, device());
  const megamla_tensor y = first.step(layer.get(), kPrompts);
  ASSERT_TRUE(load_seeded(layer.get(), narrow_model(), 2, 8).ok());
  Batch other(c, device());
  EXPECT_GT(relative_difference(other.step(layer.get(), kPrompts), y), 0.1) << "other weights";
  ASSERT_TRUE(load_seeded(layer.get(), narrow_model(), 2, 7).ok());
  Batch again(c, device());
  const megamla_tensor same = again.step(layer.get(), kPrompts);
  EXPECT_EQ(std::memcmp(y.data, same.data, static_cast<size_t>(y.shape[0] * kHidden) * sizeof(float)), 0);
}

TEST(OutputPair, ViewsAndSlices) {
  EXPECT_EQ(megamla_output_pair_bytes(-1, 8), -1);
  const int64_t bytes = megamla_output_pair_bytes(5, 8);
  EXPECT_EQ(bytes, 5 * 8 * 4096 + 8 * 32 * 8 * 4);
  app::Arena arena;
  void* memory = arena.bytes(bytes);
  megamla_tensor pair{};
  megamla_tensor scale{};
  ASSERT_EQ(megamla_output_pair_views(memory, 5, 8, -1, &pair, &scale), MEGAMLA_OK);
  EXPECT_EQ(scale.stride[0], 1);
  EXPECT_EQ(scale.stride[1], 32 * 8);
  EXPECT_EQ(scale.stride[2], 8);
  megamla_tensor pair_slice{};
  megamla_tensor scale_slice{};
  ASSERT_EQ(megamla_output_pair_slice(&pair, &scale, 2, 4, &pair_slice, &scale_slice), MEGAMLA_OK);
  EXPECT_EQ(pair_slice.data, static_cast<char*>(pair.data) + 2 * 8 * 4096);
  EXPECT_EQ(scale_slice.data, static_cast<char*>(scale.data) + 2 * 4);
  EXPECT_EQ(megamla_output_pair_slice(&pair, &scale, 4, 6, &pair_slice, &scale_slice), MEGAMLA_INVALID_ARGUMENT);
  megamla_tensor odd = pair;
  odd.stride[0] = INT64_MAX / 2;
  EXPECT_EQ(megamla_output_pair_slice(&odd, &scale, 2, 4, &pair_slice, &scale_slice), MEGAMLA_INVALID_ARGUMENT);
  odd = scale;
  odd.stride[2] = 1;
  EXPECT_EQ(megamla_output_pair_slice(&pair, &odd, 2, 4, &pair_slice, &scale_slice), MEGAMLA_INVALID_ARGUMENT);
}

TEST(BuiltinTopk, AllWhileTheyFitThenRecentAndSpread) {
  int64_t positions[] = {-1, 0, 1, 6, 7, 8, 40};
  int32_t rows[7][8];
  const megamla_tensor p = host_tensor(positions, MEGAMLA_I64, {7});
  const megamla_tensor topk = host_tensor(rows, MEGAMLA_I32, {7, 8});
  ASSERT_EQ(megamla_builtin_topk(&p, 1, &topk), MEGAMLA_OK);
  EXPECT_EQ(rows[0][0], -1);
  EXPECT_EQ(rows[2][1], 1);
  EXPECT_EQ(rows[2][2], -1);
  EXPECT_EQ(rows[4][7], 7);
  for (const int row : {5, 6}) {
    for (int k = 1; k < 8; ++k) EXPECT_LT(rows[row][k - 1], rows[row][k]) << "ascending, none twice";
    EXPECT_EQ(rows[row][0], 0);
    EXPECT_EQ(rows[row][7], positions[row]);
    EXPECT_EQ(rows[row][4], positions[row] - 3) << "the newest half";
  }
}

}  // namespace
}  // namespace megamla::test
