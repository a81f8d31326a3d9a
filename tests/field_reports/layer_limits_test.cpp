// What a layer refuses or says before any weight is loaded: TP sizes that do not divide, scales that are no power of
// two, and how much workspace a million tokens of context take. By size queries and messages alone, at the real
// geometry.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "megamla/layer.h"
#include "support/every_implementation.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

struct Destroy {
  void operator()(megamla_layer* layer) const { megamla_layer_destroy(layer); }
};
using Layer = std::unique_ptr<megamla_layer, Destroy>;

// Layer 20 of the model: ratio 1, the largest compressed cache.
megamla_layer_config real_config() {
  megamla_layer_config c;
  megamla_layer_config_init(&c);
  c.layer_id = 20;
  c.compress_ratio = 1;
  c.kv_source_layer = 20;
  c.window_format = MEGAMLA_KV_FP8_528;
  c.compressed_format = MEGAMLA_KV_NVFP4_288;
  c.max_model_len = int64_t{1} << 20;
  c.max_num_batched_tokens = 8192;
  c.max_num_requests = 64;
  return c;
}
Layer create(const megamla_layer_config& c) {
  megamla_layer* made = nullptr;
  EXPECT_EQ(megamla_layer_create(&c, MEGAMLA_DEVICE_CPU, &made), MEGAMLA_OK) << megamla_last_error();
  return Layer(made);
}

TEST(TensorParallel, OneFunctionSaysWhatDivides) {
  for (int64_t tp = 1; tp <= 130; ++tp) {
    const bool divides = 64 % tp == 0 && 8 % tp == 0;  // heads, then groups of 8 heads
    ASSERT_EQ(megamla_layer_check_tensor_parallel(64, 8, 1024, tp, tp - 1) == MEGAMLA_OK, divides) << "TP " << tp;
    const std::string reason = divides ? "" : megamla_last_error();
    megamla_layer_config c = real_config();
    c.tp_size = tp;
    c.tp_rank = tp - 1;
    megamla_layer* made = nullptr;
    const megamla_status status = megamla_layer_create(&c, MEGAMLA_DEVICE_CPU, &made);
    const Layer layer(made);
    EXPECT_EQ(status == MEGAMLA_OK, divides);
    EXPECT_EQ(layer != nullptr, divides) << "nothing exists that a weight could be loaded into";
    if (divides) continue;
    EXPECT_EQ(megamla_last_error(), reason) << "create asks the same function";
    EXPECT_EQ(reason, 64 % tp != 0 ? "layer: tp_size: expected a divisor of num_heads = 64, got " + std::to_string(tp)
                                   : "layer: tp_size: expected a divisor of o_groups = 8, got " + std::to_string(tp));
  }
  EXPECT_NE(megamla_layer_check_tensor_parallel(128, 16, 1024, 24, 0), MEGAMLA_OK);
  EXPECT_EQ(megamla_layer_check_tensor_parallel(128, 16, 1024, 16, 15), MEGAMLA_OK) << "128 heads have 16 groups";
}

// Refused for the type, whatever the values: also where each of them is a power of two.
TEST(Fp32Scales, AreRefusedByNameAtLoad) {
  const Layer layer = create(real_config());
  struct Weight {
    const char* name;
    int64_t rows, columns;
  };
  for (const Weight& w : {Weight{"wq_a", 1280, 5120}, Weight{"wkv", 512, 5120}, Weight{"wq_b", 32768, 1280},
                          Weight{"wo_a", 8192, 4096}, Weight{"wo_b", 5120, 8192}}) {
    const std::string weight_name = std::string(w.name) + ".weight";
    const std::string scale_name = std::string(w.name) + ".scale";
    std::vector<uint8_t> codes(static_cast<size_t>(w.rows * w.columns));
    std::vector<float> scales(static_cast<size_t>(w.rows / 32 * w.columns / 32), 0.5F);
    const megamla_named_tensor pair[] = {
        {weight_name.c_str(), host_tensor(codes.data(), MEGAMLA_F8_E4M3, {w.rows, w.columns})},
        {scale_name.c_str(), host_tensor(scales.data(), MEGAMLA_F32, {w.rows / 32, w.columns / 32})}};
    EXPECT_EQ(megamla_layer_load(layer.get(), pair, 2), MEGAMLA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(megamla_last_error()).find("load: " + scale_name + ": expected F8_E8M0"), 0U)
        << megamla_last_error();
    EXPECT_NE(std::string(megamla_last_error()).find("got F32"), std::string::npos) << megamla_last_error();
  }
  EXPECT_EQ(megamla_layer_weight_bytes(layer.get()), 0) << "nothing was taken";
}

class Fp32ScalesLinear : public EveryImplementation<megamla_block_scaled_linear_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(Fp32ScalesLinear);

TEST_P(Fp32ScalesLinear, AreRefusedByName) {
  TensorBuffer x(MEGAMLA_F8_E4M3, {4, 128});
  TensorBuffer weight(MEGAMLA_F8_E4M3, {32, 128});
  TensorBuffer x_scale(MEGAMLA_F32, {512});
  TensorBuffer scale(MEGAMLA_F8_E8M0, {1, 4});
  TensorBuffer fp32(MEGAMLA_F32, {1, 4});
  TensorBuffer y(MEGAMLA_F32, {4, 32});
  fp32.fill(0.5F);
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  p.input = MEGAMLA_LINEAR_IN_MXFP8;
  p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
  p.output = MEGAMLA_LINEAR_OUT_F32;
  p.x = x;
  p.x_scale = x_scale;
  p.weight = weight;
  p.weight_scale = scale;
  p.y = y;
  const std::vector<uint8_t> before = y.bytes();
  const Status input = run(p);
  EXPECT_EQ(input.code(), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(input.message().find("block_scaled_linear: x_scale: expected F8_E8M0"), 0U) << input.message();
  p.x_scale = host_tensor(x_scale.as<void>(), MEGAMLA_F8_E8M0, {512});
  p.weight_scale = fp32;
  const Status weights = run(p);
  EXPECT_EQ(weights.code(), MEGAMLA_INVALID_ARGUMENT);
  EXPECT_EQ(weights.message().find("block_scaled_linear: weight_scale: expected F8_E8M0"), 0U) << weights.message();
  EXPECT_TRUE(y.bytes() == before);
}

int64_t workspace_of(const megamla_layer_config& c) {
  const Layer layer = create(c);
  int64_t bytes = -1;
  EXPECT_EQ(megamla_layer_workspace_size(layer.get(), MEGAMLA_DEVICE_CPU, 2, &bytes), MEGAMLA_OK)
      << megamla_last_error();
  return bytes;
}

// 1M context, 8192 batched tokens: the query tells what gathering reserves, a smaller chunk reserves less, pages none.
TEST(WorkspaceOfAMillionTokens, IsToldAndCanBeAvoided) {
  megamla_layer_config c = real_config();
  c.prefill_path = MEGAMLA_PREFILL_PAGED;
  const int64_t paged = workspace_of(c);
  c.max_model_len = 8192;
  EXPECT_EQ(workspace_of(c), paged) << "reading pages needs nothing for the context";
  EXPECT_LT(paged, 2 * kGib);
  c = real_config();
  for (const int64_t chunk : {4, 2, 1}) {
    c.prefill_chunk_size = chunk;
    // bf16 rows of 1 KiB: compressed rows of the context, the window before a prompt, the batched tokens.
    const int64_t rows = chunk * (c.max_model_len + c.window + c.max_num_batched_tokens);
    for (const int32_t path : {MEGAMLA_PREFILL_GATHERED, MEGAMLA_PREFILL_AUTO}) {
      c.prefill_path = path;
      EXPECT_EQ(workspace_of(c) - paged, rows * 1024) << "chunks of " << chunk;
    }
  }
  c.prefill_chunk_size = 4;
  EXPECT_LT(workspace_of(c) - paged, 4 * kGib + kGib / 16) << "about 4 GiB at most";
  c.max_num_batched_tokens = 512;
  EXPECT_LT(workspace_of(c) - paged, 4 * kGib);
  c.compress_ratio = 2;
  EXPECT_LT(workspace_of(c), 5 * kGib / 2) << "half the rows at ratio 2";
}

// A query for limits covers every smaller call, on every device that there is.
class WorkspaceDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(WorkspaceDecode);

TEST_P(WorkspaceDecode, LimitsCoverSmallerCalls) {
  megamla_limits largest = MEGAMLA_LIMITS_INIT;
  largest.tokens = 8192;
  largest.heads = 64;
  largest.window_width = 128;
  largest.compressed_width = 1152;
  largest.num_threads = 2;
  const int64_t enough = GetParam()->workspace_size(largest);
  EXPECT_LT(enough, 2 * kGib) << "the context is no part of it";
  for (const int64_t tokens : {1, 2, 7, 33, 131, 132, 133, 1024, 8192}) {
    for (const int64_t heads : {8, 16, 64}) {
      for (const int64_t width : {0, 133, 512, 1152}) {
        megamla_limits l = largest;
        l.tokens = tokens;
        l.heads = heads;
        l.compressed_width = width;
        ASSERT_LE(GetParam()->workspace_size(l), enough) << tokens << " " << heads << " " << width;
      }
    }
  }
}

}  // namespace
}  // namespace megamla::test
