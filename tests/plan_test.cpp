// Plan functions: split_batch, prefill_chunk_plan, compressed_slot_mapping.
#include "megamla/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "plan/divisor.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

// The call fails and says why in the library's one form.
void expect_refused(const std::string& op, const std::string& argument, megamla_status status) {
  EXPECT_EQ(status, MEGAMLA_INVALID_ARGUMENT) << op << " " << argument;
  const std::string message = megamla_last_error();
  const std::string wanted = op + ": " + argument + ": expected ";
  EXPECT_EQ(message.compare(0, wanted.size(), wanted), 0) << message << "\n instead of " << wanted << "...";
  EXPECT_NE(message.find(", got "), std::string::npos) << message;
}

TEST(Divisor, EveryQuotientBelowTwoToThe31) {
  std::mt19937_64 random(3);
  std::vector<int64_t> values = {1, 2, 3, 5, 7, 31, 32, 33, 641, 65535, 65536, 65537, INT32_MAX - 1, INT32_MAX};
  for (int bits = 2; bits < 31; ++bits) {
    const int64_t power = int64_t{1} << bits;
    values.insert(values.end(), {power - 1, power, power + 1, power + static_cast<int64_t>(random() % power)});
  }
  for (const int64_t value : values) {
    const plan::Divisor divisor(value);
    const auto expect = [&](int64_t n) {
      if (n < 0 || n > INT32_MAX) return;
      ASSERT_EQ(divisor.quotient(static_cast<uint32_t>(n)), n / value) << n << " / " << value;
    };
    for (int64_t i = 0; i < 100; ++i) {  // both sides of multiples, where a quotient steps
      const int64_t multiple = static_cast<int64_t>(random() % (INT32_MAX / value + 1)) * value;
      for (const int64_t n : {multiple - 1, multiple, multiple + 1}) expect(n);
    }
    for (const int64_t n : {int64_t{0}, int64_t{INT32_MAX}, INT32_MAX / value * value - 1}) expect(n);
  }
}

TEST(SplitBatch, FirstLongQueryStartsThePrefills) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> query_lens(random() % 12);
    for (int32_t& q : query_lens) q = static_cast<int32_t>(random() % 6);
    const int64_t threshold = 1 + static_cast<int64_t>(random() % 6);
    megamla_batch_split split{};
    ASSERT_EQ(megamla_split_batch(query_lens.data(), static_cast<int64_t>(query_lens.size()), threshold, &split),
              MEGAMLA_OK);
    const auto first_long =
        std::find_if(query_lens.begin(), query_lens.end(), [&](int32_t q) { return q > threshold; });
    EXPECT_EQ(split.num_decodes, first_long - query_lens.begin());
    EXPECT_EQ(split.num_prefills, query_lens.end() - first_long);
    int64_t before = 0;
    int64_t behind = 0;
    for (auto q = query_lens.begin(); q != query_lens.end(); ++q) (q < first_long ? before : behind) += *q;
    EXPECT_EQ(split.num_decode_tokens, before);
    EXPECT_EQ(split.num_prefill_tokens, behind);
  }
}

TEST(SplitBatch, TokensAreCountedIn64Bits) {
  const std::vector<int32_t> query_lens(5, INT32_MAX);
  megamla_batch_split split{};
  ASSERT_EQ(megamla_split_batch(query_lens.data(), 5, 1, &split), MEGAMLA_OK);
  EXPECT_EQ(split.num_prefill_tokens, 5 * int64_t{INT32_MAX});
}

TEST(SplitBatch, BadArguments) {
  const int32_t query_lens[] = {1, 2, -1};
  megamla_batch_split split = {-7, -7, -7, -7};
  const auto refuse = [&](const char* argument, const int32_t* lens, int64_t n, int64_t threshold,
                          megamla_batch_split* out) {
    expect_refused("split_batch", argument, megamla_split_batch(lens, n, threshold, out));
    EXPECT_EQ(split.num_decodes, -7);
    EXPECT_EQ(split.num_prefill_tokens, -7);
  };
  refuse("query_lens", nullptr, 2, 1, &split);
  refuse("num_requests", query_lens, -1, 1, &split);
  refuse("threshold", query_lens, 2, 0, &split);
  refuse("split", query_lens, 2, 1, nullptr);
  refuse("query_lens[2]", query_lens, 3, 1, &split);
}

struct Mix {
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> query_lens;
  megamla_prefill_chunk_plan_params params;

  explicit Mix(size_t requests) : seq_lens(requests), query_lens(requests) {
    megamla_prefill_chunk_plan_init(&params);
    params.seq_lens = seq_lens.data();
    params.query_lens = query_lens.data();
    params.num_requests = static_cast<int64_t>(requests);
    params.max_model_len = 1000;
    params.max_num_batched_tokens = 200;
    params.compress_ratio = 2;
    params.has_compressed = 1;
  }
  bool compressed() const { return params.has_compressed != 0 && params.compress_ratio > 0; }
  int64_t limit() const {
    const int64_t rows = compressed() ? (params.max_model_len - 1) / params.compress_ratio + 1 : 0;
    return params.chunk_size * (rows + params.window + params.max_num_batched_tokens);
  }
  // Largest compressed and window rows of requests begin .. end - 1.
  std::pair<int64_t, int64_t> largest(int64_t begin, int64_t end) const {
    std::pair<int64_t, int64_t> rows{0, 0};
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const int64_t prefix = std::max(seq_lens[i] - query_lens[i], 0);
      if (compressed()) rows.first = std::max<int64_t>(rows.first, seq_lens[i] / params.compress_ratio);
      rows.second = std::max(rows.second, query_lens[i] + std::min(prefix, params.window - 1));
    }
    return rows;
  }
};

TEST(PrefillChunkPlan, ChunksAreAsLargeAsTheAreaAllows) {
  std::mt19937 random(8);
  for (int round = 0; round < 400; ++round) {
    Mix mix(random() % 20);
    mix.params.compress_ratio = static_cast<int64_t>(random() % 3);
    mix.params.has_compressed = static_cast<int64_t>(random() % 2);
    mix.params.chunk_size = 1 + static_cast<int64_t>(random() % 5);
    mix.params.window = 1 + static_cast<int64_t>(random() % 128);
    for (size_t i = 0; i < mix.seq_lens.size(); ++i) {
      mix.query_lens[i] = static_cast<int32_t>(random() % 200);
      mix.seq_lens[i] = static_cast<int32_t>(random() % 1500);  // at times shorter than the query
    }
    std::vector<megamla_prefill_chunk> chunks(mix.seq_lens.size() + 1, {-9, -9, -9, -9});
    int64_t count = -1;
    ASSERT_EQ(megamla_prefill_chunk_plan(&mix.params, chunks.data(), &count), MEGAMLA_OK) << megamla_last_error();
    int64_t next = 0;
    for (int64_t c = 0; c < count; ++c) {
      const megamla_prefill_chunk& chunk = chunks[static_cast<size_t>(c)];
      ASSERT_EQ(chunk.start, next);
      ASSERT_GT(chunk.end, chunk.start);
      next = chunk.end;
      const auto rows = mix.largest(chunk.start, chunk.end);
      EXPECT_EQ(chunk.n, rows.first);
      EXPECT_EQ(chunk.m, rows.first + rows.second);
      const bool forced = chunk.end - chunk.start == 1;  // a first request is taken whatever its size
      EXPECT_TRUE(forced || (chunk.end - chunk.start) * chunk.m <= mix.limit());
      if (chunk.end == mix.params.num_requests) continue;
      const auto more = mix.largest(chunk.start, chunk.end + 1);
      EXPECT_GT((chunk.end + 1 - chunk.start) * (more.first + more.second), mix.limit());
    }
    EXPECT_EQ(next, mix.params.num_requests);
    EXPECT_EQ(chunks[static_cast<size_t>(count)].start, -9);
  }
}

TEST(PrefillChunkPlan, TheAreaItselfStillFits) {
  Mix mix(2);
  mix.params.has_compressed = 0;
  mix.params.chunk_size = 1;
  mix.params.window = 1;
  mix.params.max_num_batched_tokens = 199;
  for (const int32_t query_len : {100, 101}) {  // twice 100 rows are the limit of 200
    mix.seq_lens = mix.query_lens = {query_len, query_len};
    mix.params.seq_lens = mix.seq_lens.data();
    mix.params.query_lens = mix.query_lens.data();
    megamla_prefill_chunk chunks[2];
    int64_t count = 0;
    ASSERT_EQ(megamla_prefill_chunk_plan(&mix.params, chunks, &count), MEGAMLA_OK) << megamla_last_error();
    EXPECT_EQ(count, query_len == 100 ? 1 : 2);
  }
}

TEST(PrefillChunkPlan, LargestNumbersStayIn64Bits) {
  Mix mix(3);
  mix.seq_lens = {INT32_MAX, INT32_MAX, INT32_MAX};
  mix.query_lens = {INT32_MAX, 1, INT32_MAX};
  mix.params.compress_ratio = 1;
  mix.params.chunk_size = int64_t{1} << 24;
  mix.params.window = mix.params.max_model_len = mix.params.max_num_batched_tokens = int64_t{1} << 31;
  megamla_prefill_chunk chunks[3];
  int64_t count = 0;
  ASSERT_EQ(megamla_prefill_chunk_plan(&mix.params, chunks, &count), MEGAMLA_OK) << megamla_last_error();
  EXPECT_EQ(count, 1);
  EXPECT_EQ(chunks[0].n, INT32_MAX);
  EXPECT_EQ(chunks[0].m, 2 * int64_t{INT32_MAX});
}

TEST(PrefillChunkPlan, BadArguments) {
  using P = megamla_prefill_chunk_plan_params;
  const struct {
    const char* argument;
    std::function<void(P&)> spoil;
  } cases[] = {
      {"params.struct_size", [](P& p) { p.struct_size = 4; }},
      {"num_requests", [](P& p) { p.num_requests = -1; }},
      {"num_requests", [](P& p) { p.num_requests = int64_t{1} << 30; }},
      {"seq_lens", [](P& p) { p.seq_lens = nullptr; }},
      {"query_lens", [](P& p) { p.query_lens = nullptr; }},
      {"compress_ratio", [](P& p) { p.compress_ratio = 3; }},
      {"compress_ratio", [](P& p) { p.compress_ratio = -1; }},
      {"has_compressed", [](P& p) { p.has_compressed = 2; }},
      {"chunk_size", [](P& p) { p.chunk_size = 0; }},
      {"chunk_size", [](P& p) { p.chunk_size = INT64_MAX; }},
      {"window", [](P& p) { p.window = 0; }},
      {"max_model_len", [](P& p) { p.max_model_len = -1; }},
      {"max_model_len", [](P& p) { p.max_model_len = INT64_MAX; }},
      {"max_num_batched_tokens", [](P& p) { p.max_num_batched_tokens = -1; }},
  };
  Mix mix(2);
  megamla_prefill_chunk chunks[2] = {{-9, -9, -9, -9}, {-9, -9, -9, -9}};
  int64_t count = -9;
  const auto refuse = [&](const char* argument, const P* p, megamla_prefill_chunk* out, int64_t* out_count) {
    expect_refused("prefill_chunk_plan", argument, megamla_prefill_chunk_plan(p, out, out_count));
    EXPECT_EQ(chunks[0].start, -9);
    EXPECT_EQ(count, -9);
  };
  for (const auto& c : cases) {
    P p = mix.params;
    c.spoil(p);
    refuse(c.argument, &p, chunks, &count);
  }
  refuse("params", nullptr, chunks, &count);
  refuse("chunks", &mix.params, nullptr, &count);
  refuse("num_chunks", &mix.params, chunks, nullptr);
  mix.seq_lens[1] = -1;
  refuse("seq_lens[1]", &mix.params, chunks, &count);
  mix.seq_lens[1] = 0;
  mix.query_lens[0] = -5;
  refuse("query_lens[0]", &mix.params, chunks, &count);
}

struct Mapping {
  TensorBuffer query_start_loc, seq_lens, table, slots;
  int64_t states = 32;

  Mapping(int64_t tokens, int64_t requests, int64_t columns)
      : query_start_loc(MEGAMLA_I32, {requests + 1}),
        seq_lens(MEGAMLA_I32, {requests}),
        table(MEGAMLA_I32, {requests, columns}, 1),
        slots(MEGAMLA_I64, {tokens}) {}
  void run() {
    slots.refill();
    ASSERT_EQ(megamla_compressed_slot_mapping(&query_start_loc.view(), &seq_lens.view(), &table.view(), states,
                                              &slots.view()),
              MEGAMLA_OK)
        << megamla_last_error();
    EXPECT_TRUE(slots.guards_intact());
  }
};

TEST(CompressedSlotMapping, OddPositionsGetTheSlotOfTheirGroup) {
  std::mt19937 random(9);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 60; ++round) {
    const int64_t requests = below(5);
    std::vector<int32_t> starts{0};
    for (int64_t r = 0; r < requests; ++r) starts.push_back(starts.back() + (random() % 3 == 0 ? 0 : below(20)));
    Mapping mapping(starts.back() + below(3), requests, 1 + below(6));
    mapping.states = std::vector<int64_t>{1, 32, 64, 61}[random() % 4];
    mapping.query_start_loc.assign(starts);
    for (int64_t r = 0; r < requests; ++r) {
      mapping.seq_lens.at<int32_t>(r) =
          starts[static_cast<size_t>(r) + 1] - starts[static_cast<size_t>(r)] + below(300);
    }
    for (int64_t i = 0; i < requests * mapping.table.view().stride[0]; ++i) {
      mapping.table.as<int32_t>()[i] = random() % 6 == 0 ? -1 - below(INT32_MAX) : below(INT32_MAX);
    }
    mapping.run();
    int64_t token = 0;
    for (int64_t r = 0; r < requests; ++r) {
      const int64_t end = starts[static_cast<size_t>(r) + 1];
      for (; token < end; ++token) {
        const int64_t position = mapping.seq_lens.at<int32_t>(r) - (end - token);
        const int64_t group = position / 2;
        int64_t expected = -1;
        if ((position + 1) % 2 == 0 && group / mapping.states < mapping.table.view().shape[1]) {
          const int64_t page = mapping.table.at<int32_t>(r, group / mapping.states);
          if (page >= 0) expected = page * mapping.states + group % mapping.states;
        }
        ASSERT_EQ(mapping.slots.at<int64_t>(token), expected) << "token " << token;
      }
    }
    for (; token < mapping.slots.view().shape[0]; ++token) ASSERT_EQ(mapping.slots.at<int64_t>(token), -1);
  }
}

TEST(CompressedSlotMapping, HostileLengthsGiveSlotsOfTheTableOrNone) {
  std::mt19937 random(10);
  const int32_t values[] = {0, 1, -1, 3, 40, INT32_MAX, INT32_MIN, INT32_MAX - 1};
  for (int round = 0; round < 300; ++round) {
    Mapping mapping(5, 3, 2);
    for (int64_t r = 0; r < 4; ++r) mapping.query_start_loc.at<int32_t>(r) = values[random() % 8];
    for (int64_t r = 0; r < 3; ++r) mapping.seq_lens.at<int32_t>(r) = values[random() % 8];
    mapping.table.fill<int32_t>(2);
    mapping.run();
    for (int64_t t = 0; t < 5; ++t) {
      const int64_t slot = mapping.slots.at<int64_t>(t);
      EXPECT_TRUE(slot == -1 || (slot >= 64 && slot < 96)) << slot;
    }
  }
}

TEST(CompressedSlotMapping, BadArguments) {
  Mapping mapping(4, 2, 3);
  mapping.query_start_loc.assign<int32_t>({0, 2, 4});
  mapping.seq_lens.assign<int32_t>({4, 6});
  mapping.table.fill<int32_t>(1);
  mapping.run();
  const megamla_tensor good[4] = {mapping.query_start_loc, mapping.seq_lens, mapping.table, mapping.slots};
  const char* const names[4] = {"query_start_loc", "seq_lens", "block_table", "slot_mapping"};
  const auto call = [&](const megamla_tensor t[4], int64_t states) {
    return megamla_compressed_slot_mapping(&t[0], &t[1], &t[2], states, &t[3]);
  };
  const std::vector<uint8_t> before = mapping.slots.bytes();
  const std::function<void(megamla_tensor&)> spoilers[] = {
      [](megamla_tensor& t) { t = {}; },
      [](megamla_tensor& t) { t.dtype = MEGAMLA_F32; },
      [](megamla_tensor& t) { t.data = nullptr; },
      [](megamla_tensor& t) { t.data = static_cast<char*>(t.data) + 1; },
      [](megamla_tensor& t) { t.cuda_device = 0; },
      [](megamla_tensor& t) { t.stride[t.ndim - 1] = 2; },
      [](megamla_tensor& t) { t.shape[0] = -1; },
  };
  for (int i = 0; i < 4; ++i) {
    for (const auto& spoil : spoilers) {
      megamla_tensor t[4] = {good[0], good[1], good[2], good[3]};
      spoil(t[i]);
      expect_refused("compressed_slot_mapping", names[i], call(t, 32));
    }
    megamla_tensor t[4] = {good[0], good[1], good[2], good[3]};
    t[i].data = good[3].data;
    if (i < 3) expect_refused("compressed_slot_mapping", "slot_mapping", call(t, 32));
  }
  expect_refused("compressed_slot_mapping", "states_per_page", call(good, 0));
  expect_refused("compressed_slot_mapping", "seq_lens",
                 megamla_compressed_slot_mapping(&good[0], nullptr, &good[2], 32, &good[3]));
  megamla_tensor t[4] = {good[0], good[1], good[2], good[3]};
  t[0].shape[0] = 2;
  expect_refused("compressed_slot_mapping", "query_start_loc", call(t, 32));
  EXPECT_TRUE(mapping.slots.bytes() == before);
}

}  // namespace
}  // namespace megamla::test
