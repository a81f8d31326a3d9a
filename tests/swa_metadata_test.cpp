// swa_metadata against lists built request by request from the contract's sentence.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megamla/index_ops.h"
#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

struct Shape {
  int64_t tokens, requests, decodes, columns, decode_rows, width, real_tokens;
};

struct Problem {
  TensorBuffer query_start_loc, seq_lens, slot_mapping, table, replay_start;
  TensorBuffer is_valid, token_to_req, indices, lens, gather_lens;
  megamla_swa_metadata_params params;

  explicit Problem(const Shape& s)
      : query_start_loc(MEGAMLA_I32, {s.requests + 1}),
        seq_lens(MEGAMLA_I32, {s.requests}),
        slot_mapping(MEGAMLA_I64, {s.tokens}),
        table(MEGAMLA_I32, {s.requests, s.columns}, 3),
        replay_start(MEGAMLA_I32, {s.requests}),
        is_valid(MEGAMLA_U8, {s.tokens}),
        token_to_req(MEGAMLA_I32, {s.real_tokens}),
        indices(MEGAMLA_I32, {s.decode_rows, s.width}, 4),
        lens(MEGAMLA_I32, {s.tokens}),
        gather_lens(MEGAMLA_I32, {s.requests - s.decodes}) {
    megamla_swa_metadata_init(&params);
    params.query_start_loc = query_start_loc;
    params.seq_lens = seq_lens;
    params.slot_mapping = slot_mapping;
    params.block_table = table;
    params.num_decodes = s.decodes;
    params.is_valid_token = is_valid;
    params.token_to_req = token_to_req;
    params.decode_swa_indices = indices;
    params.decode_swa_lens = lens;
    params.prefill_gather_lens = gather_lens;
  }

  std::vector<TensorBuffer*> outputs() { return {&is_valid, &token_to_req, &indices, &lens, &gather_lens}; }
  void run(megamla_device device, int threads) {
    for (TensorBuffer* out : outputs()) out->refill();
    const megamla_exec exec = exec_on(device, threads);
    ASSERT_EQ(megamla_swa_metadata(&params, &exec), MEGAMLA_OK) << megamla_last_error();
    for (TensorBuffer* out : outputs()) EXPECT_TRUE(out->guards_intact());
  }
};

// Slots of a decode token's window, oldest first.
std::vector<int32_t> expected_window(const Problem& problem, int64_t request, int64_t position, int64_t prefix) {
  const auto& p = problem.params;
  const int64_t replay = present(p.replay_start) ? problem.replay_start.at<int32_t>(request) : 0;
  const int64_t last = p.causal != 0 ? position : problem.seq_lens.at<int32_t>(request) - 1;
  std::vector<int32_t> slots;
  for (int64_t at = 0; at <= last; ++at) {
    const bool seen = p.causal != 0 ? at > position - p.window : at >= prefix - p.window;
    if (!seen || at < replay) continue;
    const int64_t column = at / p.page_size;
    const int64_t page = column < p.block_table.shape[1] ? problem.table.at<int32_t>(request, column) : -1;
    const bool exists = page >= 0 && (p.num_pages == 0 || page < p.num_pages);
    const int64_t slot = exists ? page * p.page_size + at % p.page_size : -1;
    slots.push_back(slot > INT32_MAX ? -1 : static_cast<int32_t>(slot));
  }
  if (static_cast<int64_t>(slots.size()) > p.decode_swa_indices.shape[1]) {
    slots.resize(static_cast<size_t>(p.decode_swa_indices.shape[1]));
  }
  return slots;
}

void check_token(const Problem& problem, int64_t token, int64_t request, const std::vector<int32_t>& window) {
  const bool valid = problem.slot_mapping.at<int64_t>(token) >= 0;
  EXPECT_EQ(problem.is_valid.at<uint8_t>(token), valid ? 1 : 0);
  if (token < problem.token_to_req.view().shape[0]) {
    EXPECT_EQ(problem.token_to_req.at<int32_t>(token), request);
  }
  ASSERT_EQ(problem.lens.at<int32_t>(token), static_cast<int32_t>(window.size())) << "token " << token;
  if (token >= problem.indices.view().shape[0]) return;
  for (int64_t i = 0; i < problem.indices.view().shape[1]; ++i) {
    const int32_t slot = i < static_cast<int64_t>(window.size()) ? window[static_cast<size_t>(i)] : -1;
    ASSERT_EQ(problem.indices.at<int32_t>(token, i), slot) << "token " << token << " column " << i;
  }
}

void check(Problem& problem) {
  const auto& p = problem.params;
  for (const megamla_device device : kDevices) {
    SCOPED_TRACE(device_name(device));
    problem.run(device, device == MEGAMLA_DEVICE_CPU ? 3 : 1);
    int64_t token = 0;
    for (int64_t r = 0; r < p.seq_lens.shape[0]; ++r) {
      const int64_t begin = problem.query_start_loc.at<int32_t>(r);
      const int64_t query_len = problem.query_start_loc.at<int32_t>(r + 1) - begin;
      const int64_t prefix = problem.seq_lens.at<int32_t>(r) - query_len;
      for (; token < begin + query_len; ++token) {
        const bool listed =
            r < p.num_decodes && problem.slot_mapping.at<int64_t>(token) >= 0 && token < p.decode_swa_indices.shape[0];
        check_token(problem, token, r,
                    listed ? expected_window(problem, r, prefix + token - begin, prefix) : std::vector<int32_t>{});
      }
      if (r >= p.num_decodes) {
        EXPECT_EQ(problem.gather_lens.at<int32_t>(r - p.num_decodes), query_len + std::min(prefix, p.window - 1));
      }
    }
    for (; token < p.slot_mapping.shape[0]; ++token) check_token(problem, token, -1, {});
  }
}

TEST(SwaMetadata, RandomSteps) {
  std::mt19937 random(4);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 60; ++round) {
    const int64_t requests = below(7);
    const int64_t decodes = requests == 0 ? 0 : below(requests + 1);
    std::vector<int32_t> starts{0};
    for (int64_t r = 0; r < requests; ++r) {
      starts.push_back(starts.back() + (random() % 4 == 0 ? 0 : 1 + below(r < decodes ? 5 : 40)));
    }
    const int64_t decode_tokens = starts[static_cast<size_t>(decodes)];
    const int64_t padding = below(4);
    const int64_t width = std::vector<int64_t>{128, 256, 40, 0}[random() % 4];
    Problem problem({starts.back() + padding, requests, decodes, 1 + below(12), decode_tokens, width,
                     starts.back() + (random() % 2 == 0 ? padding : 0)});
    problem.query_start_loc.assign(starts);
    problem.params.page_size = std::vector<int64_t>{1, 16, 32, 53}[random() % 4];
    problem.params.window = std::vector<int64_t>{1, 64, 128}[random() % 3];
    problem.params.num_pages = random() % 2 == 0 ? 25 : 0;
    problem.params.causal = below(2);
    for (int64_t r = 0; r < requests; ++r) {
      problem.seq_lens.at<int32_t>(r) =
          starts[static_cast<size_t>(r) + 1] - starts[static_cast<size_t>(r)] + (random() % 4 == 0 ? 0 : below(500));
      problem.replay_start.at<int32_t>(r) = below(520) - 10;
    }
    if (random() % 2 == 0) problem.params.replay_start = problem.replay_start;
    for (int64_t i = 0; i < requests * problem.table.view().stride[0]; ++i) {
      const int32_t hostile[] = {-1, INT32_MIN, INT32_MAX, 25};
      problem.table.as<int32_t>()[i] = random() % 10 == 0 ? hostile[random() % 4] : below(25);
    }
    for (int64_t t = 0; t < starts.back() + padding; ++t) {
      problem.slot_mapping.at<int64_t>(t) = t >= starts.back() || random() % 5 == 0 ? -1 - below(9) : below(1000);
    }
    check(problem);
  }
}

// Lengths that contradict each other: bounded lists of slots or -1, the same on every implementation.
TEST(SwaMetadata, HostileLengths) {
  std::mt19937 random(5);
  const int32_t values[] = {0, 1, -1, 3, 300, INT32_MAX, INT32_MIN, INT32_MAX - 1};
  for (int round = 0; round < 200; ++round) {
    Problem problem({6, 3, static_cast<int64_t>(random() % 4), 4, 4, 128, 6});
    for (int64_t r = 0; r < 3; ++r) {
      problem.seq_lens.at<int32_t>(r) = values[random() % 8];
      problem.replay_start.at<int32_t>(r) = values[random() % 8];
    }
    for (int64_t r = 0; r < 4; ++r) problem.query_start_loc.at<int32_t>(r) = values[random() % 8];
    for (int64_t i = 0; i < 3 * problem.table.view().stride[0]; ++i)
      problem.table.as<int32_t>()[i] = values[random() % 8];
    for (int64_t t = 0; t < 6; ++t) problem.slot_mapping.at<int64_t>(t) = values[random() % 8];
    problem.params.replay_start = problem.replay_start;
    problem.params.causal = static_cast<int32_t>(random() % 2);
    problem.run(MEGAMLA_DEVICE_REFERENCE, 1);
    std::vector<std::vector<uint8_t>> outputs;
    for (const TensorBuffer* out : problem.outputs()) outputs.push_back(out->bytes());
    for (int64_t t = 0; t < 6; ++t) {
      EXPECT_TRUE(problem.lens.at<int32_t>(t) >= 0 && problem.lens.at<int32_t>(t) <= 128);
      EXPECT_TRUE(problem.token_to_req.at<int32_t>(t) >= -1 && problem.token_to_req.at<int32_t>(t) < 3);
    }
    for (int64_t i = 0; i < problem.gather_lens.view().shape[0]; ++i) EXPECT_GE(problem.gather_lens.at<int32_t>(i), 0);
    problem.run(MEGAMLA_DEVICE_CPU, 3);
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(problem.outputs()[i]->bytes(), outputs[i]);
  }
}

TEST(SwaMetadata, MoreRequestsThanAGridDimension) {
  constexpr int64_t kRequests = 131072;
  Problem problem({kRequests, kRequests, kRequests, 1, kRequests, 4, kRequests});
  problem.params.window = 4;
  for (int32_t r = 0; r < kRequests; ++r) {
    problem.query_start_loc.at<int32_t>(r) = r;
    problem.seq_lens.at<int32_t>(r) = 1 + r % 32;
    problem.slot_mapping.at<int64_t>(r) = r;
    problem.table.at<int32_t>(r, 0) = r;
  }
  problem.query_start_loc.at<int32_t>(kRequests) = kRequests;
  for (const megamla_device device : kDevices) {
    problem.run(device, 0);
    for (int32_t r = 0; r < kRequests; ++r) {
      const int32_t length = std::min(4, 1 + r % 32);
      ASSERT_EQ(problem.lens.at<int32_t>(r), length);
      ASSERT_EQ(problem.token_to_req.at<int32_t>(r), r);
      ASSERT_EQ(problem.indices.at<int32_t>(r, length - 1), r * 32 + r % 32);
    }
  }
}

TEST(SwaMetadata, NoTokensAndPaddingOnly) {
  Problem none({0, 0, 0, 0, 0, 128, 0});
  none.query_start_loc.fill<int32_t>(0);
  check(none);
  Problem padding({5, 0, 0, 0, 0, 128, 5});
  padding.query_start_loc.fill<int32_t>(0);
  padding.slot_mapping.fill<int64_t>(-1);
  check(padding);
}

TEST(SwaMetadata, BadArguments) {
  using P = megamla_swa_metadata_params;
  Problem problem({5, 3, 2, 4, 3, 128, 5});
  problem.query_start_loc.assign<int32_t>({0, 1, 3, 5});
  problem.seq_lens.assign<int32_t>({4, 9, 7});
  problem.slot_mapping.fill<int64_t>(1);
  problem.table.fill<int32_t>(1);
  problem.replay_start.fill<int32_t>(0);
  problem.params.replay_start = problem.replay_start;
  BadInput<P> bad("swa_metadata", megamla_swa_metadata, problem.params,
                  {&problem.is_valid, &problem.token_to_req, &problem.indices, &problem.lens, &problem.gather_lens});
  const std::vector<megamla_tensor P::*> inputs = {&P::query_start_loc, &P::seq_lens, &P::slot_mapping, &P::block_table,
                                                   &P::replay_start};
  bad.tensor("query_start_loc", &P::query_start_loc, true, 0);
  bad.tensor("seq_lens", &P::seq_lens, true, 0);
  bad.tensor("slot_mapping", &P::slot_mapping, true, 0);
  bad.tensor("block_table", &P::block_table, true, 1);
  bad.tensor("replay_start", &P::replay_start, false, 0);
  bad.tensor("is_valid_token", &P::is_valid_token, true, 0);
  bad.tensor("token_to_req", &P::token_to_req, true, 0);
  bad.tensor("decode_swa_indices", &P::decode_swa_indices, true, 1);
  bad.tensor("decode_swa_lens", &P::decode_swa_lens, true, 0);
  bad.tensor("prefill_gather_lens", &P::prefill_gather_lens, true, 0);
  bad.output("is_valid_token", &P::is_valid_token, inputs);
  bad.output("token_to_req", &P::token_to_req, inputs);
  bad.output("decode_swa_indices", &P::decode_swa_indices, inputs);
  bad.output("decode_swa_lens", &P::decode_swa_lens, inputs);
  bad.output("prefill_gather_lens", &P::prefill_gather_lens, inputs);
  bad.output("decode_swa_indices", &P::decode_swa_indices,
             {&P::is_valid_token, &P::token_to_req, &P::decode_swa_lens, &P::prefill_gather_lens});
  bad.expect("query_start_loc", "R entries", [](P& p) { p.query_start_loc.shape[0] = 3; });
  bad.expect("block_table", "R - 1 rows", [](P& p) { p.block_table.shape[0] = 2; });
  bad.expect("replay_start", "R - 1 entries", [](P& p) { p.replay_start.shape[0] = 2; });
  bad.expect("page_size", "0", [](P& p) { p.page_size = 0; });
  bad.expect("page_size", "2^31", [](P& p) { p.page_size = int64_t{1} << 31; });
  bad.expect("num_pages", "-1", [](P& p) { p.num_pages = -1; });
  bad.expect("window", "0", [](P& p) { p.window = 0; });
  bad.expect("num_decodes", "more than R", [](P& p) { p.num_decodes = 4; });
  bad.expect("num_decodes", "-1", [](P& p) { p.num_decodes = -1; });
  bad.expect("causal", "2", [](P& p) { p.causal = 2; });
  bad.expect("reserved", "1", [](P& p) { p.reserved = 1; });
  bad.expect("is_valid_token", "one token too few", [](P& p) { p.is_valid_token.shape[0] = 4; });
  bad.expect("decode_swa_indices rows", "more rows than tokens", [](P& p) { p.decode_swa_indices.shape[0] = 6; });
  bad.expect("decode_swa_lens", "one token too few", [](P& p) { p.decode_swa_lens.shape[0] = 4; });
  bad.expect("prefill_gather_lens", "R entries", [](P& p) { p.prefill_gather_lens.shape[0] = 3; });
}

}  // namespace
}  // namespace megamla::test
