// Grid limits: 65,536 and 131,072 tokens or requests in one call, one more than a grid's second dimension and more.
// Rows repeat with a period, so that each one's result is known from the first ones', which are held against the
// reference.
#include <gtest/gtest.h>

#include <vector>

#include "support/decode_problem.hpp"
#include "support/insert_problem.hpp"
#include "support/prefill_problem.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kPeriod = 61;  // no divisor of a tile
constexpr int64_t kCounts[] = {65536, 131072};
constexpr int64_t kMost = 131072;

// Row t of `rows` repeats row t % kPeriod from here on.
void repeat_rows(const TensorBuffer& rows) {
  const megamla_tensor& v = rows.view();
  const int64_t bytes = v.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(v.dtype));
  auto* data = static_cast<char*>(v.data);
  for (int64_t t = kPeriod; t < v.shape[0]; ++t)
    std::memcpy(data + t * bytes, data + t % kPeriod * bytes, static_cast<size_t>(bytes));
}
// True where every row of `rows` has the bytes of row t % kPeriod.
bool rows_repeat(const megamla_tensor& v, int64_t row_bytes) {
  const int64_t step = v.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(v.dtype));
  const auto* data = static_cast<const char*>(v.data);
  for (int64_t t = 0; t < v.shape[0]; ++t) {
    if (!same_bytes(data + t * step, data + t % kPeriod * step, row_bytes)) {
      ADD_FAILURE() << "row " << t << " of " << v.shape[0];
      return false;
    }
  }
  return true;
}
// Of an attention's results for 8 heads.
void expect_repeats(const megamla_tensor& pair, const megamla_tensor& scale, const megamla_tensor& lse) {
  EXPECT_TRUE(rows_repeat(pair, 4096));
  EXPECT_TRUE(rows_repeat(lse, 32));
  for (int64_t t = 0; t < pair.shape[0]; ++t) {
    for (int64_t word = 0; word < 32; ++word)
      ASSERT_EQ(at<uint32_t>(scale, t, 0, word), at<uint32_t>(scale, t % kPeriod, 0, word)) << t;
  }
}
megamla_tensor one_row_for_all(megamla_tensor t, int64_t count) {
  t.shape[0] = count;
  t.stride[0] = 0;
  return t;
}

class GridDecode : public EveryImplementation<megamla_decode_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridDecode);

TEST_P(GridDecode, Tokens) {
  // One query for all; positions and keys repeat.
  DecodeProblem problem({.tokens = kPeriod, .heads = 8, .window_width = 2});
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  TensorBuffer positions(MEGAMLA_I64, {kMost});
  TensorBuffer slots(MEGAMLA_I32, {kMost, 2});
  TensorBuffer lse(MEGAMLA_F32, {kMost, 8});
  OutputPair pair(kMost, 8, kMost);
  positions.assign(problem.positions.values<int64_t>());
  for (int64_t t = 0; t < kPeriod; ++t) {
    for (int64_t i = 0; i < 2; ++i) slots.at<int32_t>(t, i) = static_cast<int32_t>(t * 2 + i);
  }
  for (int64_t slot = 0; slot < kPeriod * 2; ++slot) problem.write_record(problem.window, slot);
  for (const TensorBuffer* t : {&positions, &slots}) repeat_rows(*t);
  for (const int64_t count : kCounts) {
    auto p = problem.params;
    p.batch_invariant = 1;
    p.q = one_row_for_all(p.q, count);
    p.positions = slice(positions, 0, count);
    p.window_slots = slice(slots, 0, count);
    p.window_lens = {};
    p.lse = slice(lse, 0, count);
    p.output = MEGAMLA_OUTPUT_FP8_PAIR;
    p.out = slice(pair.data, 0, count);
    p.out_scale = slice(pair.scale, 0, count);
    pair.refill();
    lse.refill();
    expect_ok(run(p));
    expect_repeats(p.out, p.out_scale, p.lse);
    EXPECT_TRUE(pair.data.guards_intact() && pair.scale_memory.guards_intact());
  }
  // The first period itself.
  auto first = problem.params;
  first.q = one_row_for_all(first.q, kPeriod);
  first.positions = slice(positions, 0, kPeriod);
  first.window_slots = slice(slots, 0, kPeriod);
  first.window_lens = {};
  expect_ok(run_reference(first));
  expect_within(
      fp8_bound(4), kPeriod * 8 * 512, [&](int64_t i) { return pair.value(i / 4096, i / 512 % 8, i % 512); },
      [&](int64_t i) { return problem.o.as<float>()[i]; });
}

class GridPrefill : public EveryImplementation<megamla_prefill_attention_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridPrefill);

TEST_P(GridPrefill, Tokens) {
  PrefillProblem problem(kPeriod, 8, 4, 64, false, 1);
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(problem.params);
  TensorBuffer positions(MEGAMLA_I32, {kMost});
  TensorBuffer indices(MEGAMLA_I32, {kMost, 4});
  TensorBuffer lse(MEGAMLA_F32, {kMost, 8});
  OutputPair pair(kMost, 8, kMost);
  positions.assign(problem.positions.values<int32_t>());
  for (int64_t t = 0; t < kPeriod; ++t) {
    for (int64_t i = 0; i < 4; ++i) indices.at<int32_t>(t, i) = static_cast<int32_t>((t * 4 + i * 6) % 32 * 2);
  }
  for (const TensorBuffer* t : {&positions, &indices}) repeat_rows(*t);
  for (const int64_t count : kCounts) {
    auto p = problem.params;
    p.q = one_row_for_all(p.q, count);
    p.positions = slice(positions, 0, count);
    p.indices = slice(indices, 0, count);
    p.topk_length = {};
    p.max_logits = {};
    p.lse = slice(lse, 0, count);
    p.output = MEGAMLA_OUTPUT_FP8_PAIR;
    p.out = slice(pair.data, 0, count);
    p.out_scale = slice(pair.scale, 0, count);
    pair.refill();
    expect_ok(run(p));
    expect_repeats(p.out, p.out_scale, p.lse);
    EXPECT_TRUE(pair.data.guards_intact() && pair.scale_memory.guards_intact());
  }
  auto first = problem.params;
  first.q = one_row_for_all(first.q, kPeriod);
  first.positions = slice(positions, 0, kPeriod);
  first.indices = slice(indices, 0, kPeriod);
  first.topk_length = first.max_logits = first.lse = {};
  expect_ok(run_reference(first));
  expect_within(
      fp8_bound(4), kPeriod * 8 * 512, [&](int64_t i) { return pair.value(i / 4096, i / 512 % 8, i % 512); },
      [&](int64_t i) { return problem.o.at<float>(i / 4096, i / 512 % 8, i % 512); });
}

class GridInsert : public EveryImplementation<megamla_kv_insert_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridInsert);

TEST_P(GridInsert, Tokens) {
  std::mt19937 random(17);
  for (const CacheKind kind : {kCacheKinds[0], kCacheKinds[1]}) {
    InsertProblem problem(kind, kMost / 64, 64, kPeriod, kMost, MEGAMLA_I64, random);
    problem.identity_slots();
    TensorBuffer positions(MEGAMLA_I64, {kMost});
    for (int64_t t = 0; t < kMost; ++t) positions.at<int64_t>(t) = t % kPeriod;
    auto p = problem.params;
    p.latent = one_row_for_all(p.latent, kMost);
    p.positions = positions;
    expect_ok(run(p));
    for (int64_t slot = 0; slot < kMost; ++slot) {
      const auto got = format::slot_bytes(problem.cache.view(), slot);
      const auto first = format::slot_bytes(problem.cache.view(), slot % kPeriod);
      ASSERT_TRUE(same_bytes(got.data, first.data, format::data_bytes(kind.format))) << slot;
      ASSERT_TRUE(same_bytes(got.scale, first.scale, format::scale_bytes(kind.format))) << slot;
    }
    // The first period itself: the same rows one by one.
    p.latent = one_row_for_all(problem.latent, kPeriod);
    p.positions = slice(positions, 0, kPeriod);
    problem.params = p;
    for (int64_t t = 1; t < kPeriod; ++t)
      std::memcpy(&problem.latent.at<format::Bf16>(t, 0), &problem.latent.at<format::Bf16>(0, 0), 1024);
    EXPECT_TRUE(problem.cache.bytes() == expected_pool(problem).pool);
    EXPECT_EQ(problem.skipped.at<int64_t>(0), 0);
  }
}

class GridGather : public EveryImplementation<megamla_kv_gather_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridGather);

TEST_P(GridGather, RequestsAndRows) {
  PagedCache cache(kCacheKinds[1], kPeriod, 1, 0);
  std::mt19937_64 random(3);
  TensorBuffer expected(MEGAMLA_BF16, {kPeriod, 512});
  for (int64_t slot = 0; slot < kPeriod; ++slot) {
    float x[512];
    for (float& v : x) v = std::normal_distribution<float>()(random);
    const auto record = format::slot_bytes(cache.view(), slot);
    format::encode_row(MEGAMLA_KV_NVFP4_288, x, record.data, record.scale);
    format::decode_row(MEGAMLA_KV_NVFP4_288, record.data, record.scale, x);
    for (int64_t d = 0; d < 512; ++d) expected.at<format::Bf16>(slot, d) = format::to_bf16(x[d]);
  }
  TensorBuffer out(MEGAMLA_BF16, {kMost, 512});
  TensorBuffer table(MEGAMLA_I32, {kMost});
  TensorBuffer seq_lens(MEGAMLA_I32, {kMost});
  for (int64_t i = 0; i < kMost; ++i) table.at<int32_t>(i) = static_cast<int32_t>(i % kPeriod);
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = cache.view();
  for (const bool requests : {true, false}) {  // 131,072 requests of one row, then one request of 131,072 rows
    const int64_t r = requests ? kMost : 1;
    seq_lens.fill(static_cast<int32_t>(kMost / r));
    p.seq_lens = slice(seq_lens, 0, r);
    p.block_table = host_tensor(table.as<void>(), MEGAMLA_I32, {r, kMost / r});
    p.out = host_tensor(out.as<void>(), MEGAMLA_BF16, {r, kMost / r, 512});
    out.refill();
    expect_ok(run(p));
    EXPECT_TRUE(same_bytes(out.as<void>(), expected.as<void>(), kPeriod * 1024));
    EXPECT_TRUE(rows_repeat(out, 1024));
    EXPECT_TRUE(out.guards_intact());
  }
}

class GridLinear : public EveryImplementation<megamla_block_scaled_linear_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridLinear);

// Small whole numbers: sums are exact in any order.
TEST_P(GridLinear, Tokens) {
  TensorBuffer x(MEGAMLA_BF16, {kMost, 32});
  TensorBuffer weight(MEGAMLA_F8_E4M3, {32, 32});
  TensorBuffer scale(MEGAMLA_F8_E8M0, {1, 1});
  TensorBuffer y(MEGAMLA_F32, {kMost, 32});
  for (int64_t t = 0; t < kMost; ++t) {
    for (int64_t i = 0; i < 32; ++i)
      x.at<format::Bf16>(t, i) = format::to_bf16(static_cast<float>((t % kPeriod * 5 + i * 3) % 9 - 4));
  }
  const auto w = [](int64_t n, int64_t i) { return static_cast<float>((n * 7 + i * 11) % 9 - 4); };
  for (int64_t n = 0; n < 32; ++n) {
    for (int64_t i = 0; i < 32; ++i) weight.at<uint8_t>(n, i) = format::float_to_e4m3(w(n, i));
  }
  scale.fill<uint8_t>(127);
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
  p.output = MEGAMLA_LINEAR_OUT_F32;
  p.x = x;
  p.weight = weight;
  p.weight_scale = scale;
  p.y = y;
  MEGAMLA_SKIP_IF_LEFT_TO_ANOTHER(p);
  expect_ok(run(p));
  for (int64_t t = 0; t < kPeriod; ++t) {
    for (int64_t n = 0; n < 32; ++n) {
      float sum = 0;
      for (int64_t i = 0; i < 32; ++i) sum += format::to_float(x.at<format::Bf16>(t, i)) * w(n, i);
      ASSERT_EQ(y.at<float>(t, n), sum) << t << " " << n;
    }
  }
  EXPECT_TRUE(rows_repeat(y, 128));
}

class GridCompress : public EveryImplementation<megamla_kv_compress_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridCompress);

TEST_P(GridCompress, Tokens) {
  TensorBuffer score(MEGAMLA_F32, {1, 512});
  TensorBuffer weight(MEGAMLA_BF16, {512});
  TensorBuffer latent(MEGAMLA_BF16, {kMost, 512});
  for (int64_t d = 0; d < 512; ++d) score.at<float>(0, d) = static_cast<float>(d % 2 == 0 ? 2 : -2);
  weight.fill(format::to_bf16(0.5F));
  megamla_kv_compress_params p;
  megamla_kv_compress_init(&p);
  p.compress_ratio = 1;
  p.kv_score = one_row_for_all(score, kMost);
  p.weight = weight;
  p.latent = latent;
  expect_ok(run(p));
  for (int64_t d = 0; d < 512; ++d)  // a root mean square of 2
    ASSERT_EQ(format::to_float(latent.at<format::Bf16>(0, d)), d % 2 == 0 ? 0.5F : -0.5F);
  EXPECT_TRUE(rows_repeat(latent, 1024));
}

class GridNorm : public EveryImplementation<megamla_rms_norm_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridNorm);

TEST_P(GridNorm, Tokens) {
  TensorBuffer x(MEGAMLA_F32, {1, 64});
  TensorBuffer weight(MEGAMLA_BF16, {64});
  TensorBuffer y(MEGAMLA_BF16, {kMost, 64});
  for (int64_t i = 0; i < 64; ++i) x.at<float>(0, i) = static_cast<float>(i % 2 == 0 ? 3 : -3);
  weight.fill(format::to_bf16(2));
  megamla_rms_norm_params p;
  megamla_rms_norm_init(&p);
  p.x = one_row_for_all(x, kMost);
  p.weight = weight;
  p.y = y;
  expect_ok(run(p));
  for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(format::to_float(y.at<format::Bf16>(0, i)), i % 2 == 0 ? 2.0F : -2.0F);
  EXPECT_TRUE(rows_repeat(y, 128));
}

class GridCast : public EveryImplementation<megamla_output_cast_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridCast);

TEST_P(GridCast, Tokens) {
  TensorBuffer in(MEGAMLA_F32, {1, 8, 512});
  OutputPair pair(kMost, 8, kMost);
  for (int64_t i = 0; i < 4096; ++i) in.as<float>()[i] = static_cast<float>(i % 15 - 7);  // e4m3 holds them
  megamla_output_cast_params p;
  megamla_output_cast_init(&p);
  p.in = one_row_for_all(in, kMost);
  p.out = pair.data;
  p.out_scale = pair.scale;
  expect_ok(run(p));
  for (int64_t i = 0; i < 4096; ++i) ASSERT_EQ(pair.value(0, i / 512, i % 512), in.as<float>()[i]);
  EXPECT_TRUE(rows_repeat(pair.data, 4096));
  for (int64_t t = 0; t < kMost; ++t) {
    for (int64_t word = 0; word < 32; ++word)
      ASSERT_EQ(at<uint32_t>(pair.scale, t, 0, word), at<uint32_t>(pair.scale, 0, 0, word)) << t;
  }
}

class GridSlots : public EveryImplementation<megamla_topk_to_slots_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridSlots);

TEST_P(GridSlots, TokensAndRequests) {
  TensorBuffer topk(MEGAMLA_I32, {kMost, 2});
  TensorBuffer request(MEGAMLA_I32, {kMost});
  TensorBuffer table(MEGAMLA_I32, {kMost, 1});
  TensorBuffer slots(MEGAMLA_I32, {kMost, 2});
  TensorBuffer lens(MEGAMLA_I32, {kMost});
  for (int64_t t = 0; t < kMost; ++t) {
    topk.at<int32_t>(t, 0) = static_cast<int32_t>(t % 4);
    topk.at<int32_t>(t, 1) = -1;
    request.at<int32_t>(t) = static_cast<int32_t>(kMost - 1 - t);
    table.at<int32_t>(t, 0) = static_cast<int32_t>(t);
  }
  megamla_topk_to_slots_params p;
  megamla_topk_to_slots_init(&p);
  p.topk = topk;
  p.token_to_req = request;
  p.block_table = table;
  p.slots_per_page = 4;
  p.slots = slots;
  p.lens = lens;
  expect_ok(run(p));
  for (int64_t t = 0; t < kMost; ++t) {
    ASSERT_EQ(slots.at<int32_t>(t, 0), (kMost - 1 - t) * 4 + t % 4) << t;
    ASSERT_EQ(slots.at<int32_t>(t, 1), -1) << t;
    ASSERT_EQ(lens.at<int32_t>(t), 1) << t;
  }
}

class GridCombine : public EveryImplementation<megamla_combine_topk_swa_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridCombine);

// 131,072 requests of one token, then one request of 65,536 + 3 tokens.
TEST_P(GridCombine, TokensAndRequests) {
  TensorBuffer topk(MEGAMLA_I32, {kMost, 1});
  TensorBuffer start(MEGAMLA_I32, {kMost + 1});
  TensorBuffer seq_lens(MEGAMLA_I32, {kMost});
  TensorBuffer gather_lens(MEGAMLA_I32, {kMost});
  TensorBuffer indices(MEGAMLA_I32, {kMost, 128});
  TensorBuffer lens(MEGAMLA_I32, {kMost});
  topk.fill<int32_t>(0);
  for (int64_t r = 0; r <= kMost; ++r) start.at<int32_t>(r) = static_cast<int32_t>(r);
  seq_lens.fill<int32_t>(1);
  gather_lens.fill<int32_t>(1);
  megamla_combine_topk_swa_params p;
  megamla_combine_topk_swa_init(&p);
  p.topk = topk;
  p.query_start_loc = start;
  p.seq_lens = seq_lens;
  p.gather_lens = gather_lens;
  p.window = 2;
  p.compress_ratio = 1;
  p.n = 1;
  p.m = 2;
  p.indices = indices;
  p.lens = lens;
  expect_ok(run(p));
  for (int64_t r = 0; r < kMost; ++r) {
    ASSERT_EQ(lens.at<int32_t>(r), 2) << r;
    ASSERT_EQ(indices.at<int32_t>(r, 0), 2 * r) << r;
    ASSERT_EQ(indices.at<int32_t>(r, 1), 2 * r + 1) << r;
    ASSERT_EQ(indices.at<int32_t>(r, 2), -1) << r;
  }
  constexpr int64_t kTokens = 65536 + 3;
  start.assign<int32_t>({0, kTokens});
  seq_lens.at<int32_t>(0) = gather_lens.at<int32_t>(0) = kTokens;
  p.topk = slice(topk, 0, kTokens);
  p.query_start_loc = slice(start, 0, 2);
  p.seq_lens = slice(seq_lens, 0, 1);
  p.gather_lens = slice(gather_lens, 0, 1);
  p.indices = slice(indices, 0, kTokens);
  p.lens = slice(lens, 0, kTokens);
  p.m = 1 + kTokens;
  expect_ok(run(p));
  for (int64_t t = 1; t < kTokens; ++t) {
    ASSERT_EQ(lens.at<int32_t>(t), 3) << t;
    ASSERT_EQ(indices.at<int32_t>(t, 0), 0) << t;
    ASSERT_EQ(indices.at<int32_t>(t, 1), t) << t;  // row 1 + position of the window's older token
    ASSERT_EQ(indices.at<int32_t>(t, 2), t + 1) << t;
  }
}

class GridWindow : public EveryImplementation<megamla_swa_metadata_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridWindow);

TEST_P(GridWindow, RequestsOfOneToken) {
  TensorBuffer start(MEGAMLA_I32, {kMost + 1});
  TensorBuffer seq_lens(MEGAMLA_I32, {kMost});
  TensorBuffer mapping(MEGAMLA_I64, {kMost});
  TensorBuffer table(MEGAMLA_I32, {kMost, 1});
  TensorBuffer valid(MEGAMLA_U8, {kMost});
  TensorBuffer request(MEGAMLA_I32, {kMost});
  TensorBuffer indices(MEGAMLA_I32, {kMost, 2});
  TensorBuffer lens(MEGAMLA_I32, {kMost});
  TensorBuffer gather_lens(MEGAMLA_I32, {0});
  for (int64_t r = 0; r < kMost; ++r) {
    start.at<int32_t>(r) = static_cast<int32_t>(r);
    seq_lens.at<int32_t>(r) = 1 + static_cast<int32_t>(r % 4);
    mapping.at<int64_t>(r) = r;
    table.at<int32_t>(r, 0) = static_cast<int32_t>(kMost - 1 - r);
  }
  start.at<int32_t>(kMost) = kMost;
  megamla_swa_metadata_params p;
  megamla_swa_metadata_init(&p);
  p.query_start_loc = start;
  p.seq_lens = seq_lens;
  p.slot_mapping = mapping;
  p.block_table = table;
  p.page_size = 4;
  p.window = 2;
  p.num_decodes = kMost;
  p.causal = 1;
  p.is_valid_token = valid;
  p.token_to_req = request;
  p.decode_swa_indices = indices;
  p.decode_swa_lens = lens;
  p.prefill_gather_lens = gather_lens;
  expect_ok(run(p));
  for (int64_t r = 0; r < kMost; ++r) {
    const int64_t position = r % 4;
    const int64_t page = (kMost - 1 - r) * 4;
    ASSERT_EQ(request.at<int32_t>(r), r);
    ASSERT_EQ(valid.at<uint8_t>(r), 1) << r;
    ASSERT_EQ(lens.at<int32_t>(r), position == 0 ? 1 : 2) << r;
    ASSERT_EQ(indices.at<int32_t>(r, 0), page + std::max<int64_t>(position - 1, 0)) << r;
    ASSERT_EQ(indices.at<int32_t>(r, 1), position == 0 ? -1 : page + position) << r;
  }
}

class GridRope : public EveryImplementation<megamla_rope_table_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridRope);

TEST_P(GridRope, Rows) {
  TensorBuffer positions(MEGAMLA_I64, {kMost});
  TensorBuffer table(MEGAMLA_F32, {kMost, 64});
  for (int64_t t = 0; t < kMost; ++t) positions.at<int64_t>(t) = t % kPeriod;
  megamla_rope_table_params p;
  megamla_rope_table_init(&p);
  p.positions = positions;
  p.cos_sin = table;
  expect_ok(run(p));
  EXPECT_FLOAT_EQ(table.at<float>(60, 0), std::cos(60.0F));
  EXPECT_TRUE(rows_repeat(table, 256));
}

class GridPermute : public EveryImplementation<megamla_permute_weights_params> {};
MEGAMLA_EVERY_IMPLEMENTATION(GridPermute);

TEST_P(GridPermute, Rows) {
  TensorBuffer in(MEGAMLA_U8, {kMost, 1, 128});
  TensorBuffer out(MEGAMLA_U8, {kMost, 1, 128});
  for (int64_t t = 0; t < kMost; ++t) {
    for (int64_t i = 0; i < 128; ++i) in.at<uint8_t>(t, 0, i) = static_cast<uint8_t>(t % kPeriod + i);
  }
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = MEGAMLA_PERMUTE_O_CHUNKS;
  p.in = in;
  p.out = out;
  expect_ok(run(p));
  for (int64_t i = 0; i < 128; ++i) ASSERT_EQ(out.at<uint8_t>(5, 0, i % 16 * 8 + i / 16), in.at<uint8_t>(5, 0, i));
  EXPECT_TRUE(rows_repeat(out, 128));
}

}  // namespace
}  // namespace megamla::test
