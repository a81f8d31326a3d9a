// 32-bit offsets again: rows of activations, lists and results beyond 2^32 bytes of the first one, for every op whose
// row strides are the caller's. far_offsets_test has the caches and decode_attention.
#include "support/far_rows.hpp"

#include <gtest/gtest.h>

#include <random>

#include "support/insert_problem.hpp"
#include "support/linear_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

void fill_bf16(const TensorBuffer& t, int64_t count, std::mt19937_64& random) {
  for (int64_t i = 0; i < count; ++i)
    t.as<format::Bf16>()[i] = format::to_bf16(std::normal_distribution<float>()(random));
}
void fill_f32(const TensorBuffer& t, int64_t count, std::mt19937_64& random) {
  for (int64_t i = 0; i < count; ++i) t.as<float>()[i] = std::normal_distribution<float>()(random);
}

class FarRowsPrefill : public EveryImplementation<megamla_prefill_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsPrefill);

TEST_P(FarRowsPrefill, QueriesListsAndResults) {
  using P = megamla_prefill_attention_params;
  PrefillProblem problem(2, 8, 40, 64, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  expect_same_bits_far_apart(problem.params, {&P::q, &P::positions, &P::indices, &P::topk_length},
                             {&P::out, &P::lse, &P::max_logits}, on_gpu(), [&](const P& p) { return run(p); });
}

class FarRowsInsert : public EveryImplementation<megamla_kv_insert_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsInsert);

TEST_P(FarRowsInsert, LatentsAndTable) {
  using P = megamla_kv_insert_params;
  std::mt19937 random(1);
  InsertProblem problem(kCacheKinds[0], 1, 2, 2, 2, MEGAMLA_I64, random);
  problem.identity_slots();
  problem.params.cos_sin = slice(problem.cos_sin, 0, 2);
  std::vector<uint8_t> near;
  expect_same_bits_far_apart(problem.params, {&P::latent, &P::cos_sin}, {}, on_gpu(), [&](const P& p) {
    const std::vector<uint8_t> before = problem.cache.bytes();
    Status status = run(p);
    EXPECT_TRUE(near.empty() || near == problem.cache.bytes());
    near = problem.cache.bytes();
    EXPECT_FALSE(near == before);
    problem.cache.restore(before);
    return status;
  });
}

class FarRowsGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsGather);

TEST_P(FarRowsGather, Tables) {
  using P = megamla_kv_gather_params;
  PagedCache cache(kCacheKinds[0], 4, 2, 16);
  TensorBuffer seq_lens(MEGAMLA_I32, {2});
  TensorBuffer table(MEGAMLA_I32, {2, 2});
  TensorBuffer out(MEGAMLA_BF16, {2, 4, 512});
  seq_lens.assign<int32_t>({4, 3});
  table.assign<int32_t>({3, 1, 2, 0});
  P p;
  megamla_kv_gather_init(&p);
  p.cache = cache.view();
  p.seq_lens = seq_lens;
  p.block_table = table;
  p.out = out;
  std::memset(out.as<void>(), 0, 2 * 4 * 1024);  // as far rows are where nothing is written
  expect_same_bits_far_apart(p, {&P::block_table}, {&P::out}, on_gpu(), [&](const P& q) { return run(q); });
}

class FarRowsCompress : public EveryImplementation<megamla_kv_compress_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsCompress);

TEST_P(FarRowsCompress, ScoresAndLatents) {
  using P = megamla_kv_compress_params;
  std::mt19937_64 random(2);
  for (const int32_t ratio : {1, 2}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio));
    TensorBuffer scores(MEGAMLA_F32, {2, 512 * ratio});
    TensorBuffer weight(MEGAMLA_BF16, {512});
    TensorBuffer request(MEGAMLA_I32, {2});
    TensorBuffer positions(MEGAMLA_I64, {2});
    TensorBuffer block(MEGAMLA_I32, {2});
    TensorBuffer state(MEGAMLA_F32, {3, 8, 1024});
    TensorBuffer latent(MEGAMLA_BF16, {2, 512});
    fill_f32(scores, 2 * 512 * ratio, random);
    fill_bf16(weight, 512, random);
    fill_f32(state, 3 * 8 * 1024, random);
    request.assign<int32_t>({0, 1});
    positions.assign<int64_t>({5, 3});
    block.assign<int32_t>({1, 2});
    P p;
    megamla_kv_compress_init(&p);
    p.compress_ratio = ratio;
    p.kv_score = scores;
    p.weight = weight;
    p.latent = latent;
    if (ratio == 2) {
      p.token_to_req = request;
      p.positions = positions;
      p.state_block = block;
      p.state = state;
    }
    expect_same_bits_far_apart(p, {&P::kv_score}, {&P::latent}, on_gpu(), [&](const P& q) { return run(q); });
  }
}

class FarRowsLinear : public EveryImplementation<megamla_block_scaled_linear_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsLinear);

TEST_P(FarRowsLinear, TokensAndTheirResults) {
  using P = megamla_block_scaled_linear_params;
  for (const megamla_linear_input input : kLinearInputs) {
    LinearProblem problem({2, 1, 128, 128, input, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_F32}, 3);
    problem.params.batch_invariant = 1;
    MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
    if (input == MEGAMLA_LINEAR_IN_MXFP8) {  // x is contiguous
      expect_same_bits_far_apart(problem.params, {}, {&P::y}, on_gpu(), [&](const P& p) { return run(p); });
    } else {
      expect_same_bits_far_apart(problem.params, {&P::x}, {&P::y}, on_gpu(), [&](const P& p) { return run(p); });
    }
  }
}

// Groups, too, may lie anywhere: the second one's activations, scales and results beyond 2^32 bytes.
TEST_P(FarRowsLinear, GroupsAndTheirScales) {
  LinearProblem problem(
      {3, 2, 128, 32, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32}, 4);
  auto p = problem.params;
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
  expect_ok(run(p));
  constexpr int64_t kGroup = FarRows::kStep;  // bytes
  const SparseMemory x(kGroup + 4096);
  const SparseMemory scale(kGroup + 4096);
  const SparseMemory y(kGroup + 4096);
  p.x = host_tensor(x.data(), MEGAMLA_F8_E4M3, {3, 2, 128});
  p.x.stride[1] = kGroup;
  p.x_scale.data = scale.data();
  p.x_scale.stride[1] = p.x_scale.stride[2] = kGroup / 4;
  p.y = host_tensor(y.data(), MEGAMLA_F32, {3, 2, 32});
  p.y.stride[0] = 32;
  p.y.stride[1] = kGroup / 4;
  p.x.stride[0] = 128;
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t g = 0; g < 2; ++g) {
      std::memcpy(&at<uint8_t>(p.x, t, g, 0), &problem.x.at<uint8_t>(t, g, 0), 128);
      at<int32_t>(p.x_scale, t, g, 0) = at<int32_t>(problem.params.x_scale, t, g, 0);
    }
  }
  expect_ok(run(p));
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t g = 0; g < 2; ++g)
      EXPECT_TRUE(same_bytes(&at<float>(p.y, t, g, 0), &problem.y.at<float>(t, g, 0), 128)) << t << " " << g;
  }
}

class FarRowsNorm : public EveryImplementation<megamla_rms_norm_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsNorm);

TEST_P(FarRowsNorm, Rows) {
  using P = megamla_rms_norm_params;
  std::mt19937_64 random(5);
  TensorBuffer x(MEGAMLA_BF16, {2, 1280});
  TensorBuffer weight(MEGAMLA_BF16, {1280});
  TensorBuffer y(MEGAMLA_BF16, {2, 1280});
  fill_bf16(x, 2 * 1280, random);
  fill_bf16(weight, 1280, random);
  P p;
  megamla_rms_norm_init(&p);
  p.x = x;
  p.weight = weight;
  p.y = y;
  expect_same_bits_far_apart(p, {&P::x}, {&P::y}, on_gpu(), [&](const P& q) { return run(q); });
}

class FarRowsCast : public EveryImplementation<megamla_output_cast_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsCast);

TEST_P(FarRowsCast, Rows) {
  using P = megamla_output_cast_params;
  std::mt19937_64 random(6);
  TensorBuffer in(MEGAMLA_F32, {2, 8, 512});
  fill_f32(in, 2 * 8 * 512, random);
  OutputPair pair(2, 8, 4);
  P p;
  megamla_output_cast_init(&p);
  p.in = in;
  p.out = pair.data;
  p.out_scale = pair.scale;
  expect_ok(run(p));
  const std::vector<uint8_t> near = pair.data.bytes();
  pair.data.refill();
  const FarRows far(p.in, true, on_gpu());
  p.in = far.view();
  expect_ok(run(p));
  EXPECT_TRUE(pair.data.bytes() == near);
}

// Packed scales of a pair made for 2^26 tokens: a word's tokens take 256 MiB, a group's words 8 GiB.
TEST_P(FarRowsCast, ScalesOfAnEnormousPair) {
  std::mt19937_64 random(7);
  TensorBuffer in(MEGAMLA_F32, {3, 8, 512});
  fill_f32(in, 3 * 8 * 512, random);
  OutputPair pair(3, 8, 4);
  megamla_output_cast_params p;
  megamla_output_cast_init(&p);
  p.in = in;
  p.out = pair.data;
  p.out_scale = pair.scale;
  expect_ok(run(p));
  constexpr int64_t kTokens = int64_t{1} << 26;
  const SparseMemory memory(32 * kTokens * 4);
  p.out_scale.data = memory.data();
  p.out_scale.stride[1] = 32 * kTokens;
  p.out_scale.stride[2] = kTokens;
  expect_ok(run(p));
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t word = 0; word < 32; ++word)
      ASSERT_EQ(at<int32_t>(p.out_scale, t, 0, word), at<int32_t>(pair.scale, t, 0, word)) << t << " " << word;
  }
}

class FarRowsSlots : public EveryImplementation<megamla_topk_to_slots_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsSlots);

TEST_P(FarRowsSlots, ListsAndTables) {
  using P = megamla_topk_to_slots_params;
  TensorBuffer topk(MEGAMLA_I32, {2, 3});
  TensorBuffer request(MEGAMLA_I32, {2});
  TensorBuffer table(MEGAMLA_I32, {2, 2});
  TensorBuffer slots(MEGAMLA_I32, {2, 3});
  TensorBuffer lens(MEGAMLA_I32, {2});
  topk.assign<int32_t>({0, 5, -1, 7, 3, 2});
  request.assign<int32_t>({1, 0});
  table.assign<int32_t>({3, 9, 4, 8});
  P p;
  megamla_topk_to_slots_init(&p);
  p.topk = topk;
  p.token_to_req = request;
  p.block_table = table;
  p.slots_per_page = 4;
  p.slots = slots;
  p.lens = lens;
  expect_same_bits_far_apart(p, {&P::topk, &P::block_table}, {&P::slots}, on_gpu(), [&](const P& q) { return run(q); });
}

class FarRowsCombine : public EveryImplementation<megamla_combine_topk_swa_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsCombine);

TEST_P(FarRowsCombine, Lists) {
  using P = megamla_combine_topk_swa_params;
  TensorBuffer topk(MEGAMLA_I32, {2, 3});
  TensorBuffer start(MEGAMLA_I32, {3});
  TensorBuffer seq_lens(MEGAMLA_I32, {2});
  TensorBuffer gather_lens(MEGAMLA_I32, {2});
  TensorBuffer indices(MEGAMLA_I32, {2, 128});
  TensorBuffer lens(MEGAMLA_I32, {2});
  topk.assign<int32_t>({0, 2, 1, 4, 3, -1});
  start.assign<int32_t>({0, 1, 2});
  seq_lens.assign<int32_t>({6, 9});
  gather_lens.assign<int32_t>({4, 5});
  P p;
  megamla_combine_topk_swa_init(&p);
  p.topk = topk;
  p.query_start_loc = start;
  p.seq_lens = seq_lens;
  p.gather_lens = gather_lens;
  p.window = 4;
  p.compress_ratio = 1;
  p.n = 9;
  p.m = 20;
  p.indices = indices;
  p.lens = lens;
  expect_same_bits_far_apart(p, {&P::topk}, {&P::indices}, on_gpu(), [&](const P& q) { return run(q); });
}

class FarRowsWindow : public EveryImplementation<megamla_swa_metadata_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsWindow);

TEST_P(FarRowsWindow, TablesAndLists) {
  using P = megamla_swa_metadata_params;
  TensorBuffer start(MEGAMLA_I32, {3});
  TensorBuffer seq_lens(MEGAMLA_I32, {2});
  TensorBuffer mapping(MEGAMLA_I64, {2});
  TensorBuffer table(MEGAMLA_I32, {2, 3});
  TensorBuffer valid(MEGAMLA_U8, {2});
  TensorBuffer request(MEGAMLA_I32, {2});
  TensorBuffer indices(MEGAMLA_I32, {2, 6});
  TensorBuffer lens(MEGAMLA_I32, {2});
  TensorBuffer gather_lens(MEGAMLA_I32, {0});
  start.assign<int32_t>({0, 1, 2});
  seq_lens.assign<int32_t>({7, 11});
  mapping.assign<int64_t>({1, 2});
  table.assign<int32_t>({5, 2, 7, 1, 9, 3});
  P p;
  megamla_swa_metadata_init(&p);
  p.query_start_loc = start;
  p.seq_lens = seq_lens;
  p.slot_mapping = mapping;
  p.block_table = table;
  p.page_size = 4;
  p.window = 5;
  p.num_decodes = 2;
  p.is_valid_token = valid;
  p.token_to_req = request;
  p.decode_swa_indices = indices;
  p.decode_swa_lens = lens;
  p.prefill_gather_lens = gather_lens;
  expect_same_bits_far_apart(p, {&P::block_table}, {&P::decode_swa_indices}, on_gpu(),
                             [&](const P& q) { return run(q); });
}

class FarRowsRope : public EveryImplementation<megamla_rope_table_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(FarRowsRope);

TEST_P(FarRowsRope, PositionsAndRows) {
  using P = megamla_rope_table_params;
  TensorBuffer positions(MEGAMLA_I64, {2});
  TensorBuffer table(MEGAMLA_F32, {2, 64});
  positions.assign<int64_t>({3, 1048575});
  P p;
  megamla_rope_table_init(&p);
  p.positions = positions;
  p.cos_sin = table;
  expect_same_bits_far_apart(p, {&P::positions}, {&P::cos_sin}, on_gpu(), [&](const P& q) { return run(q); });
}

}  // namespace
}  // namespace megamla::test
