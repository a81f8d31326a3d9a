// Zero tokens on one rank, and requests of length zero inside a batch: success, nothing written.
#include <gtest/gtest.h>

#include <vector>

#include "support/every_implementation.hpp"
#include "support/linear_problem.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {
namespace {

// Of no tokens; the memory of an empty tensor may be NULL.
megamla_tensor none(megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  return host_tensor(nullptr, dtype, shape);
}
megamla_tensor empty_scale(int64_t groups) {
  megamla_tensor t = none(MEGAMLA_I32, {0, groups, 32});
  t.stride[0] = 1;
  t.stride[1] = 32 * 4;
  t.stride[2] = 4;
  return t;
}

#define MEGAMLA_ZERO_TOKENS(fixture, op)                                \
  class fixture : public EveryImplementation<megamla_##op##_params> {}; \
  MEGAMLA_EVERY_IMPLEMENTATION(fixture);                                \
  TEST_P(fixture, Succeeds)

MEGAMLA_ZERO_TOKENS(ZeroDecode, decode_attention) {
  PagedCache window(kCacheKinds[0], 3, 4, 16);
  PagedCache compressed(kCacheKinds[1], 3, 4, 16);
  megamla_decode_attention_params p;
  megamla_decode_attention_init(&p);
  p.q = none(MEGAMLA_BF16, {0, 16, 512});
  p.window = window.view();
  p.compressed = compressed.view();
  p.window_slots = none(MEGAMLA_I32, {0, 128});
  p.compressed_slots = none(MEGAMLA_I32, {0, 512});
  p.out = none(MEGAMLA_F8_E4M3, {0, 2, 4096});
  p.out_scale = empty_scale(2);
  p.lse = none(MEGAMLA_F32, {0, 16});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroPrefill, prefill_attention) {
  megamla_prefill_attention_params p;
  megamla_prefill_attention_init(&p);
  p.q = none(MEGAMLA_BF16, {0, 16, 512});
  p.kv = none(MEGAMLA_BF16, {0, 512});
  p.indices = none(MEGAMLA_I32, {0, 640});
  p.out = none(MEGAMLA_F8_E4M3, {0, 2, 4096});
  p.out_scale = empty_scale(2);
  p.lse = none(MEGAMLA_F32, {0, 16});
  p.max_logits = none(MEGAMLA_F32, {0, 16});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroInsert, kv_insert) {
  PagedCache cache(kCacheKinds[0], 3, 4, 16);
  TensorBuffer skipped(MEGAMLA_I64, {1});
  const std::vector<uint8_t> before = cache.bytes();
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = none(MEGAMLA_BF16, {0, 512});
  p.slot_mapping = none(MEGAMLA_I64, {0});
  p.cache = cache.view();
  p.skipped_rows = skipped;
  expect_ok(run(p));
  EXPECT_EQ(skipped.at<int64_t>(0), 0);
  EXPECT_TRUE(cache.bytes() == before);
}

MEGAMLA_ZERO_TOKENS(ZeroGather, kv_gather) {
  PagedCache cache(kCacheKinds[0], 3, 4, 16);
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = cache.view();
  p.seq_lens = none(MEGAMLA_I32, {0});
  p.gather_lens = none(MEGAMLA_I32, {0});
  p.block_table = none(MEGAMLA_I32, {0, 3});
  p.out = none(MEGAMLA_BF16, {0, 7, 512});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroCompress, kv_compress) {
  TensorBuffer weight(MEGAMLA_BF16, {512});
  TensorBuffer state(MEGAMLA_F32, {2, 8, 1024});
  const std::vector<uint8_t> before = state.bytes();
  for (const int32_t ratio : {1, 2}) {
    megamla_kv_compress_params p;
    megamla_kv_compress_init(&p);
    p.compress_ratio = ratio;
    p.kv_score = none(MEGAMLA_F32, {0, 512 * ratio});
    p.weight = weight;
    p.latent = none(MEGAMLA_BF16, {0, 512});
    if (ratio == 2) {
      p.token_to_req = none(MEGAMLA_I32, {0});
      p.positions = none(MEGAMLA_I64, {0});
      p.state_block = none(MEGAMLA_I32, {0});
      p.state = state;
    }
    expect_ok(run(p));
  }
  EXPECT_TRUE(state.bytes() == before);
}

// Every kind, one group and several, more features than a step of the loops takes.
MEGAMLA_ZERO_TOKENS(ZeroLinear, block_scaled_linear) {
  constexpr int64_t kIn = 5120;
  constexpr int64_t kOut = 128;
  for (const int64_t groups : {1, 3}) {
    const TensorBuffer codes(MEGAMLA_F8_E4M3, {groups, kOut, kIn});
    const TensorBuffer values(MEGAMLA_BF16, {groups, kOut, kIn});
    const TensorBuffer blocks(MEGAMLA_F8_E8M0, {groups, kOut / 32, kIn / 32});
    const TensorBuffer rows(MEGAMLA_F8_E8M0, {groups, kOut, kIn / 32});
    for (const megamla_linear_input input : kLinearInputs) {
      if (input == MEGAMLA_LINEAR_IN_MXFP8 && groups > 1) continue;
      for (const megamla_linear_weight weight : kLinearWeights) {
        for (const megamla_linear_output output : kLinearOutputs) {
          megamla_block_scaled_linear_params p;
          megamla_block_scaled_linear_init(&p);
          p.input = input;
          p.x = none(input == MEGAMLA_LINEAR_IN_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {0, groups, kIn});
          if (input == MEGAMLA_LINEAR_IN_FP8_PAIR) p.x_scale = none(MEGAMLA_I32, {0, groups, kIn / 128});
          if (input == MEGAMLA_LINEAR_IN_MXFP8) {
            p.x = none(MEGAMLA_F8_E4M3, {0, kIn});
            p.x_scale = none(MEGAMLA_F8_E8M0, {0});
          }
          p.weight_kind = weight;
          p.weight = weight == MEGAMLA_LINEAR_WEIGHT_BF16 ? values : codes;
          if (weight == MEGAMLA_LINEAR_WEIGHT_BLOCK_32) p.weight_scale = blocks;
          if (weight == MEGAMLA_LINEAR_WEIGHT_ROW_32) p.weight_scale = rows;
          p.output = output;
          p.y = none(dtype_of(output), {0, groups, kOut});
          if (output == MEGAMLA_LINEAR_OUT_MXFP8) {
            p.y = none(MEGAMLA_F8_E4M3, {0, groups * kOut});
            p.y_scale = none(MEGAMLA_F8_E8M0, {0});
          }
          if (!left_to_another(p).empty()) continue;
          expect_ok(run(p));
        }
      }
    }
  }
}

MEGAMLA_ZERO_TOKENS(ZeroNorm, rms_norm) {
  TensorBuffer weight(MEGAMLA_BF16, {64});
  megamla_rms_norm_params p;
  megamla_rms_norm_init(&p);
  p.x = none(MEGAMLA_BF16, {0, 64});
  p.weight = weight;
  p.y = none(MEGAMLA_BF16, {0, 64});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroCast, output_cast) {
  for (const megamla_dtype dtype : {MEGAMLA_F32, MEGAMLA_BF16}) {
    megamla_output_cast_params p;
    megamla_output_cast_init(&p);
    p.in = none(dtype, {0, 8, 512});
    p.out = none(MEGAMLA_F8_E4M3, {0, 1, 4096});
    p.out_scale = empty_scale(1);
    expect_ok(run(p));
    p.target = MEGAMLA_CAST_MXFP8;
    p.in = none(dtype, {0, 256});
    p.out = none(MEGAMLA_F8_E4M3, {0, 256});
    p.out_scale = none(MEGAMLA_F8_E8M0, {0});
    expect_ok(run(p));
  }
}

MEGAMLA_ZERO_TOKENS(ZeroRope, rope_table) {
  megamla_rope_table_params p;
  megamla_rope_table_init(&p);
  p.cos_sin = none(MEGAMLA_F32, {0, 64});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroPermute, permute_weights) {
  megamla_permute_weights_params p;
  for (const auto& [kind, width] : {std::pair{MEGAMLA_PERMUTE_Q, 512}, std::pair{MEGAMLA_PERMUTE_PAD_Q, 512},
                                    std::pair{MEGAMLA_PERMUTE_O, 4096}, std::pair{MEGAMLA_PERMUTE_O_CHUNKS, 128}}) {
    megamla_permute_weights_init(&p);
    p.kind = kind;
    p.in = none(MEGAMLA_BF16, {0, 8, width});
    p.out = none(MEGAMLA_BF16, {0, 8, width});
    expect_ok(run(p));
  }
  megamla_permute_weights_init(&p);
  p.kind = MEGAMLA_PERMUTE_WQ_B;
  p.in = none(MEGAMLA_F8_E4M3, {0, 1280});
  p.in_scale = none(MEGAMLA_F8_E8M0, {0, 40});
  p.out = none(MEGAMLA_F8_E4M3, {0, 1280});
  p.out_scale = none(MEGAMLA_F8_E8M0, {0, 40});
  p.out_scale_packed = none(MEGAMLA_I32, {10, 0});
  expect_ok(run(p));
  p.kind = MEGAMLA_PERMUTE_WO_A;
  p.in = none(MEGAMLA_F8_E4M3, {0, 4096});
  p.in_scale = none(MEGAMLA_F8_E8M0, {0, 128});
  p.out = none(MEGAMLA_F8_E4M3, {3, 0, 4096});
  p.out_scale = none(MEGAMLA_F8_E8M0, {3, 0, 128});
  p.out_scale_packed = none(MEGAMLA_I32, {3, 32, 0});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroSlots, topk_to_slots) {
  megamla_topk_to_slots_params p;
  megamla_topk_to_slots_init(&p);
  p.topk = none(MEGAMLA_I32, {0, 512});
  p.token_to_req = none(MEGAMLA_I32, {0});
  p.block_table = none(MEGAMLA_I32, {0, 4});
  p.slots_per_page = 64;
  p.slots = none(MEGAMLA_I32, {0, 512});
  p.lens = none(MEGAMLA_I32, {0});
  expect_ok(run(p));
}

MEGAMLA_ZERO_TOKENS(ZeroCombine, combine_topk_swa) {
  const TensorBuffer start(MEGAMLA_I32, {4});
  const TensorBuffer lens(MEGAMLA_I32, {3});
  std::memset(start.as<void>(), 0, 4 * 4);
  std::memset(lens.as<void>(), 0, 3 * 4);
  for (const bool requests : {false, true}) {  // none, and three of no tokens
    megamla_combine_topk_swa_params p;
    megamla_combine_topk_swa_init(&p);
    p.topk = none(MEGAMLA_I32, {0, 512});
    p.query_start_loc = slice(start, 0, requests ? 4 : 1);
    p.seq_lens = requests ? lens.view() : none(MEGAMLA_I32, {0});
    p.gather_lens = p.seq_lens;
    p.compress_ratio = 1;
    p.n = 512;
    p.m = 700;
    p.indices = none(MEGAMLA_I32, {0, 640});
    p.lens = none(MEGAMLA_I32, {0});
    expect_ok(run(p));
  }
}

MEGAMLA_ZERO_TOKENS(ZeroWindow, swa_metadata) {
  const TensorBuffer start(MEGAMLA_I32, {1});
  std::memset(start.as<void>(), 0, 4);
  megamla_swa_metadata_params p;
  megamla_swa_metadata_init(&p);
  p.query_start_loc = start;
  p.seq_lens = none(MEGAMLA_I32, {0});
  p.slot_mapping = none(MEGAMLA_I64, {0});
  p.block_table = none(MEGAMLA_I32, {0, 4});
  p.replay_start = none(MEGAMLA_I32, {0});
  p.is_valid_token = none(MEGAMLA_U8, {0});
  p.token_to_req = none(MEGAMLA_I32, {0});
  p.decode_swa_indices = none(MEGAMLA_I32, {0, 128});
  p.decode_swa_lens = none(MEGAMLA_I32, {0});
  p.prefill_gather_lens = none(MEGAMLA_I32, {0});
  expect_ok(run(p));
}

// Requests of lengths 0, 3, 0, 2, 0: the same results as of the second and fourth alone.

class EmptyRequestsGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(EmptyRequestsGather);

TEST_P(EmptyRequestsGather, WriteNothing) {
  PagedCache cache(kCacheKinds[0], 4, 2, 16);
  TensorBuffer seq_lens(MEGAMLA_I32, {5});
  TensorBuffer table(MEGAMLA_I32, {5, 2});
  TensorBuffer out(MEGAMLA_BF16, {5, 3, 512});
  TensorBuffer pair(MEGAMLA_BF16, {2, 3, 512});
  seq_lens.assign<int32_t>({0, 3, 0, 2, 0});
  table.assign<int32_t>({3, 3, 0, 1, 3, 3, 2, 3, 3, 3});
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = cache.view();
  p.seq_lens = seq_lens;
  p.block_table = table;
  p.out = out;
  expect_ok(run(p));
  TensorBuffer full_lens(MEGAMLA_I32, {2});
  TensorBuffer full_table(MEGAMLA_I32, {2, 2});
  full_lens.assign<int32_t>({3, 2});
  full_table.assign<int32_t>({0, 1, 2, 3});
  p.seq_lens = full_lens;
  p.block_table = full_table;
  p.out = pair;
  expect_ok(run(p));
  const TensorBuffer untouched(MEGAMLA_BF16, {3, 512});
  for (int64_t r = 0; r < 5; ++r) {
    const void* expected = r == 1   ? &pair.at<format::Bf16>(0, 0)
                           : r == 3 ? &pair.at<format::Bf16>(1, 0)
                                    : untouched.as<void>();
    EXPECT_TRUE(same_bytes(&out.at<format::Bf16>(r, 0), expected, 3 * 1024)) << "request " << r;
  }
}

class EmptyRequestsWindow : public EveryImplementation<megamla_swa_metadata_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(EmptyRequestsWindow);

TEST_P(EmptyRequestsWindow, HaveNoTokens) {
  constexpr int64_t kTokens = 5;
  TensorBuffer start(MEGAMLA_I32, {6});
  TensorBuffer seq_lens(MEGAMLA_I32, {5});
  TensorBuffer mapping(MEGAMLA_I64, {kTokens});
  TensorBuffer table(MEGAMLA_I32, {5, 1});
  TensorBuffer valid(MEGAMLA_U8, {kTokens});
  TensorBuffer request(MEGAMLA_I32, {kTokens});
  TensorBuffer indices(MEGAMLA_I32, {kTokens, 8});
  TensorBuffer lens(MEGAMLA_I32, {kTokens});
  TensorBuffer gather_lens(MEGAMLA_I32, {0});
  start.assign<int32_t>({0, 0, 3, 3, 5, 5});
  seq_lens.assign<int32_t>({0, 3, 0, 2, 0});
  mapping.assign<int64_t>({8, 9, 10, 24, 25});
  table.assign<int32_t>({0, 1, 2, 3, 4});
  megamla_swa_metadata_params p;
  megamla_swa_metadata_init(&p);
  p.query_start_loc = start;
  p.seq_lens = seq_lens;
  p.slot_mapping = mapping;
  p.block_table = table;
  p.page_size = 8;
  p.window = 8;
  p.num_decodes = 5;
  p.causal = 1;
  p.is_valid_token = valid;
  p.token_to_req = request;
  p.decode_swa_indices = indices;
  p.decode_swa_lens = lens;
  p.prefill_gather_lens = gather_lens;
  expect_ok(run(p));
  EXPECT_EQ(request.values<int32_t>(), (std::vector<int32_t>{1, 1, 1, 3, 3}));
  EXPECT_EQ(lens.values<int32_t>(), (std::vector<int32_t>{1, 2, 3, 1, 2}));
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t page = t < 3 ? 8 : 24;
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(indices.at<int32_t>(t, i), i < lens.at<int32_t>(t) ? page + i : -1) << t << " " << i;
  }
}

class EmptyRequestsCombine : public EveryImplementation<megamla_combine_topk_swa_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(EmptyRequestsCombine);

TEST_P(EmptyRequestsCombine, HaveNoTokens) {
  constexpr int64_t kTokens = 5;
  TensorBuffer topk(MEGAMLA_I32, {kTokens, 1});
  TensorBuffer start(MEGAMLA_I32, {6});
  TensorBuffer seq_lens(MEGAMLA_I32, {5});
  TensorBuffer gather_lens(MEGAMLA_I32, {5});
  TensorBuffer indices(MEGAMLA_I32, {kTokens, 128});
  TensorBuffer lens(MEGAMLA_I32, {kTokens});
  topk.fill<int32_t>(0);
  start.assign<int32_t>({0, 0, 3, 3, 5, 5});
  seq_lens.assign<int32_t>({0, 3, 0, 2, 0});
  gather_lens.assign<int32_t>({0, 3, 0, 2, 0});
  megamla_combine_topk_swa_params p;
  megamla_combine_topk_swa_init(&p);
  p.topk = topk;
  p.query_start_loc = start;
  p.seq_lens = seq_lens;
  p.gather_lens = gather_lens;
  p.window = 1;
  p.compress_ratio = 1;
  p.n = 3;
  p.m = 6;
  p.indices = indices;
  p.lens = lens;
  expect_ok(run(p));
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t request = t < 3 ? 1 : 3;
    const int64_t position = t < 3 ? t : t - 3;
    EXPECT_EQ(lens.at<int32_t>(t), 2) << t;
    EXPECT_EQ(indices.at<int32_t>(t, 0), 6 * request) << t;
    EXPECT_EQ(indices.at<int32_t>(t, 1), 6 * request + 3 + position) << t;
    EXPECT_EQ(indices.at<int32_t>(t, 2), -1) << t;
  }
}

}  // namespace
}  // namespace megamla::test
