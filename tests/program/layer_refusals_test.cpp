// What a layer refuses: configurations by their numbers, steps before anything of them is written.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <tuple>

#include "support/layer_batch.hpp"

namespace megamla::test {
namespace {

class LayerRefusals : public LayerOn {};
MEGAMLA_LAYER_ON_EACH_DEVICE(LayerRefusals);

TEST(Layer, RefusesWithTheNumbersInTheMessage) {
  struct Case {
    const char* message;
    void (*spoil)(megamla_layer_config&);
  };
  const Case cases[] = {
      {"tp_size: expected a divisor of num_heads = 64, got 24", [](megamla_layer_config& c) { c.tp_size = 24; }},
      {"tp_size: expected a divisor of o_groups = 8, got 16", [](megamla_layer_config& c) { c.tp_size = 16; }},
      {"tp_rank: expected a value in [0, 1], got 2",
       [](megamla_layer_config& c) {
         c.tp_size = 2;
         c.tp_rank = 2;
       }},
      {"num_heads / o_groups: expected 8 heads per group, got 64 / 4", [](megamla_layer_config& c) { c.o_groups = 4; }},
      {"num_heads / tp_size: expected at most 128 heads on a rank, got 256",
       [](megamla_layer_config& c) {
         c.num_heads = 256;
         c.o_groups = 32;
       }},
      {"compress_ratio: expected 0, 1 or 2, got 3", [](megamla_layer_config& c) { c.compress_ratio = 3; }},
      {"o_lora_rank: expected a positive multiple of 32, got 40", [](megamla_layer_config& c) { c.o_lora_rank = 40; }},
      {"head_dim: expected a value in [512, 512], got 128", [](megamla_layer_config& c) { c.head_dim = 128; }},
      {"got (fp8_584, nvfp4_288)", [](megamla_layer_config& c) { c.window_format = MEGAMLA_KV_FP8_584; }},
      {"compressed_format: expected a format for compress_ratio 1, got none",
       [](megamla_layer_config& c) { c.compressed_format = MEGAMLA_KV_NONE; }},
      {"(groups on this rank * o_lora_rank) to be a multiple of 128, got 32",
       [](megamla_layer_config& c) {
         c.tp_size = 8;
         c.o_lora_rank = 32;
         c.quantize_z = 1;
       }},
      {"prefill_path: expected auto or paged for batch-invariant results, got gathered",
       [](megamla_layer_config& c) {
         c.batch_invariant = 1;
         c.prefill_path = MEGAMLA_PREFILL_GATHERED;
       }},
      {"rms_norm_eps: expected a finite value, got inf",
       [](megamla_layer_config& c) { c.rms_norm_eps = std::numeric_limits<float>::infinity(); }},
      {"window_format: expected a value in [1, 3], got 9", [](megamla_layer_config& c) { c.window_format = 9; }},
      {"compressed_format: expected a value in [0, 3], got -1",
       [](megamla_layer_config& c) { c.compressed_format = -1; }},
      {"max_num_batched_tokens: expected a value in [1, 2147483647], got 0",
       [](megamla_layer_config& c) { c.max_num_batched_tokens = 0; }},
  };
  for (const Case& test : cases) {
    megamla_layer_config c = narrow_config(20);
    test.spoil(c);
    megamla_layer* made = nullptr;
    EXPECT_NE(megamla_layer_is_supported(&c, MEGAMLA_DEVICE_CPU), MEGAMLA_OK) << test.message;
    EXPECT_NE(megamla_layer_create(&c, MEGAMLA_DEVICE_CPU, &made), MEGAMLA_OK) << test.message;
    EXPECT_NE(std::string(megamla_last_error()).find(test.message), std::string::npos) << megamla_last_error();
    EXPECT_EQ(made, nullptr);
  }
}

TEST_P(LayerRefusals, BadStepsAreRefusedBeforeAnythingIsWritten) {
  const megamla_layer_config c = narrow_config(20);
  const LayerHandle layer = make_layer(c, device());
  Batch batch(c, device());
  const auto cache_bytes = static_cast<size_t>(batch.window().num_pages * batch.window().page_stride);
  const std::vector<char> before(static_cast<char*>(batch.window().data),
                                 static_cast<char*>(batch.window().data) + cache_bytes);
  batch.step(layer.get(), {{0, 250, 20}}, 0, 0, MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("seq_lens[0]"), std::string::npos) << megamla_last_error();
  batch.step(layer.get(), {{0, 0, kMaxTokens + 1}}, 0, 0, MEGAMLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(megamla_last_error()).find("tokens"), std::string::npos) << megamla_last_error();
  EXPECT_EQ(std::memcmp(before.data(), batch.window().data, cache_bytes), 0);
}

// What an op would find only after others have written: lists with gaps, memory that a step both reads and writes.
TEST_P(LayerRefusals, WhatOpsFindLateIsRefusedBeforeAnythingIsWritten) {
  const megamla_layer_config c = narrow_config(2);  // ratio 2, a source: the compressor's state comes first
  const LayerHandle layer = make_layer(c, device());
  Batch batch(c, device());
  batch.step(layer.get(), kPrompts);
  Batch::Step s = batch.make_step(10, 2);
  batch.fill(s, kMixed);
  s.metadata.step_id = 7;
  megamla_layer_taps taps;
  megamla_layer_taps_init(&taps);
  taps.latent = batch.arena().tensor(MEGAMLA_BF16, {10, 512}, 0xa5);
  megamla_forward_params good = batch.params(s);
  good.taps = &taps;
  struct Case {
    const char* message;
    void (*spoil)(megamla_forward_params&, megamla_step_metadata&, megamla_layer_taps&);
  };
  using P = megamla_forward_params;
  using M = megamla_step_metadata;
  using T = megamla_layer_taps;
  const Case cases[] = {
      {"forward: positions: expected stride 1", [](P&, M& m, T&) { m.positions.stride[0] = 2; }},
      {"forward: slot_mapping: expected stride 1", [](P&, M& m, T&) { m.slot_mapping.stride[0] = 2; }},
      {"forward: compressed_slot_mapping: expected stride 1",
       [](P&, M& m, T&) { m.compressed_slot_mapping.stride[0] = 2; }},
      {"forward: state_block: expected stride 1", [](P&, M& m, T&) { m.state_block.stride[0] = 2; }},
      {"forward: y: expected memory apart from window", [](P& p, M&, T&) { p.y.data = p.window.data; }},
      {"forward: y: expected memory apart from compressed", [](P& p, M&, T&) { p.y.data = p.compressed.data; }},
      {"forward: x: expected memory apart from window", [](P& p, M&, T&) { p.x.data = p.window.data; }},
      // Positions, or what lies behind them: y is longer. So is the state than y.
      {"forward: y: expected memory apart from", [](P& p, M& m, T&) { p.y.data = m.positions.data; }},
      {"forward: compressor_state: expected memory apart from",
       [](P& p, M&, T&) { p.compressor_state.data = p.y.data; }},
      {"forward: taps.latent: expected memory apart from x", [](P& p, M&, T& t) { t.latent.data = p.x.data; }},
      {"forward: taps.latent: expected memory apart from y", [](P& p, M&, T& t) { t.latent.data = p.y.data; }},
  };
  const auto bytes_of = [&](const void* begin, int64_t bytes) {
    return std::vector<char>(static_cast<const char*>(begin), static_cast<const char*>(begin) + bytes);
  };
  const auto written = [&] {
    const megamla_kv_cache w = batch.window();
    const megamla_kv_cache k = batch.compressed();
    return std::tuple{bytes_of(w.data, w.num_pages * w.page_stride), bytes_of(k.data, k.num_pages * k.page_stride),
                      bytes_of(good.compressor_state.data, 3 * 8 * 1024 * 4), bytes_of(s.y.data, 10 * kHidden * 4),
                      bytes_of(taps.latent.data, 10 * 1024)};
  };
  const auto before = written();
  for (const Case& test : cases) {
    megamla_forward_params p = good;
    megamla_step_metadata m = s.metadata;
    megamla_layer_taps t = taps;
    p.metadata = &m;
    p.taps = &t;
    test.spoil(p, m, t);
    EXPECT_EQ(batch.forward(layer.get(), p), MEGAMLA_INVALID_ARGUMENT) << test.message;
    EXPECT_EQ(std::string(megamla_last_error()).find(test.message), 0U) << megamla_last_error();
    EXPECT_TRUE(written() == before) << test.message;
  }
  EXPECT_EQ(batch.forward(layer.get(), good), MEGAMLA_OK) << megamla_last_error();
}

}  // namespace
}  // namespace megamla::test
