// combine_topk_swa against a list built request by request, token by token, from the contract's sentence.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megamla/index_ops.h"
#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

struct Problem {
  TensorBuffer topk, query_start_loc, seq_lens, gather_lens, indices, lens;
  megamla_combine_topk_swa_params params;

  Problem(int64_t rows, int64_t width, int64_t requests, int64_t window)
      : topk(MEGAMLA_I32, {rows, width}, 1),
        query_start_loc(MEGAMLA_I32, {requests + 1}),
        seq_lens(MEGAMLA_I32, {requests}),
        gather_lens(MEGAMLA_I32, {requests}),
        indices(MEGAMLA_I32, {rows, (width + window + 127) / 128 * 128}, 2),
        lens(MEGAMLA_I32, {rows}) {
    megamla_combine_topk_swa_init(&params);
    params.topk = topk;
    params.query_start_loc = query_start_loc;
    params.seq_lens = seq_lens;
    params.gather_lens = gather_lens;
    params.window = window;
    params.indices = indices;
    params.lens = lens;
  }

  int64_t rows() const { return topk.view().shape[0]; }
  int64_t requests() const { return seq_lens.view().shape[0]; }
  void run(megamla_device device, int threads) {
    indices.refill();
    lens.refill();
    const megamla_exec exec = exec_on(device, threads);
    ASSERT_EQ(megamla_combine_topk_swa(&params, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_TRUE(indices.guards_intact() && lens.guards_intact());
  }
};

// One row, without the -1 behind it.
std::vector<int32_t> expected_row(const Problem& problem, int64_t request, int64_t position, const int32_t* topk) {
  const auto& p = problem.params;
  std::vector<int32_t> row;
  const int64_t groups = p.compress_ratio == 0 ? 0 : (position + 1) / p.compress_ratio;
  for (int64_t i = 0; i < std::min(groups, p.topk.shape[1]); ++i) {
    const bool exists = topk[i] >= 0 && topk[i] < p.n;
    row.push_back(exists ? static_cast<int32_t>(topk[i] + p.m * request) : -1);
  }
  const int64_t gather_start =
      int64_t{problem.seq_lens.at<int32_t>(request)} - problem.gather_lens.at<int32_t>(request);
  for (int64_t at = 0; at <= position; ++at) {
    if (at < gather_start || at <= position - p.window) continue;
    const int64_t within = p.n + (at - gather_start);
    row.push_back(within < p.m ? static_cast<int32_t>(p.m * request + within) : -1);
  }
  return row;
}

void check(Problem& problem) {
  const int64_t first = problem.query_start_loc.at<int32_t>(0);
  for (const megamla_device device : kDevices) {
    for (const int threads : {1, 3}) {
      problem.run(device, threads);
      int64_t next = 0;
      for (int64_t r = 0; r < problem.requests(); ++r) {
        const int64_t begin = problem.query_start_loc.at<int32_t>(r) - first;
        const int64_t end = problem.query_start_loc.at<int32_t>(r + 1) - first;
        for (next = begin; next < end; ++next) {
          const int64_t position = problem.seq_lens.at<int32_t>(r) - (end - next);
          std::vector<int32_t> row = expected_row(problem, r, position, &problem.topk.at<int32_t>(next, 0));
          ASSERT_EQ(problem.lens.at<int32_t>(next), static_cast<int32_t>(row.size())) << "row " << next;
          row.resize(static_cast<size_t>(problem.indices.view().shape[1]), -1);
          for (size_t i = 0; i < row.size(); ++i) {
            ASSERT_EQ(problem.indices.at<int32_t>(next, static_cast<int64_t>(i)), row[i])
                << device_name(device) << " row " << next << " column " << i;
          }
        }
      }
      for (; next < problem.rows(); ++next) {
        ASSERT_EQ(problem.lens.at<int32_t>(next), 0);
        for (int64_t i = 0; i < problem.indices.view().shape[1]; ++i)
          ASSERT_EQ(problem.indices.at<int32_t>(next, i), -1);
      }
    }
  }
}

TEST(CombineTopkSwa, RandomChunks) {
  std::mt19937 random(2);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 40; ++round) {
    const int64_t requests = 1 + below(4);
    const int64_t window = std::vector<int64_t>{1, 7, 64, 128}[random() % 4];
    const int32_t first = below(50);
    std::vector<int32_t> starts{first};
    for (int64_t r = 0; r < requests; ++r) starts.push_back(starts.back() + (random() % 4 == 0 ? 0 : below(30)));
    Problem problem(starts.back() - first + below(3), 1 + below(90), requests, window);
    problem.query_start_loc.assign(starts);
    problem.params.compress_ratio = below(3);
    problem.params.n = below(200);
    problem.params.m = problem.params.n + below(300);
    for (int64_t r = 0; r < requests; ++r) {
      const int32_t query_len = starts[static_cast<size_t>(r) + 1] - starts[static_cast<size_t>(r)];
      problem.seq_lens.at<int32_t>(r) = query_len + (random() % 3 == 0 ? 0 : below(400));
      problem.gather_lens.at<int32_t>(r) = below(problem.seq_lens.at<int32_t>(r) + 20);
    }
    for (int64_t i = 0; i < problem.rows(); ++i) {
      for (int64_t c = 0; c < problem.topk.view().shape[1]; ++c) {
        const int32_t hostile[] = {-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(problem.params.n)};
        problem.topk.at<int32_t>(i, c) = random() % 8 == 0 ? hostile[random() % 4] : below(problem.params.n + 1);
      }
    }
    check(problem);
  }
}

// Lengths that contradict each other give short or empty rows: never a hang, an access out of bounds or a wrapped
// index.
TEST(CombineTopkSwa, HostileLengths) {
  std::mt19937 random(3);
  const int32_t values[] = {0, 1, -1, 5, 200, INT32_MAX, INT32_MIN, INT32_MAX - 1};
  for (int round = 0; round < 200; ++round) {
    Problem problem(6, 5, 3, 64);
    for (int64_t r = 0; r < 3; ++r) {
      problem.seq_lens.at<int32_t>(r) = values[random() % 8];
      problem.gather_lens.at<int32_t>(r) = values[random() % 8];
    }
    for (int64_t r = 0; r < 4; ++r) problem.query_start_loc.at<int32_t>(r) = values[random() % 8];
    for (int64_t i = 0; i < 6 * problem.topk.view().stride[0]; ++i)
      problem.topk.as<int32_t>()[i] = values[random() % 8];
    problem.params.compress_ratio = static_cast<int64_t>(random() % 3);
    problem.params.m = INT32_MAX / 3;
    problem.params.n = static_cast<int64_t>(random() % 2) * 150;
    problem.run(MEGAMLA_DEVICE_REFERENCE, 1);
    const auto indices = problem.indices.values<int32_t>();
    const auto lens = problem.lens.values<int32_t>();
    for (const int32_t length : lens) EXPECT_TRUE(length >= 0 && length <= 5 + 64) << length;
    for (int64_t i = 0; i < problem.rows(); ++i) {
      for (int64_t c = 0; c < 128; ++c) {
        EXPECT_GE(problem.indices.at<int32_t>(i, c), -1);
        EXPECT_LT(problem.indices.at<int32_t>(i, c), 3 * problem.params.m);
      }
    }
    problem.run(MEGAMLA_DEVICE_CPU, 3);
    EXPECT_EQ(problem.indices.values<int32_t>(), indices);
    EXPECT_EQ(problem.lens.values<int32_t>(), lens);
  }
}

TEST(CombineTopkSwa, NoTokens) {
  Problem problem(0, 512, 0, 128);
  problem.query_start_loc.fill<int32_t>(0);
  check(problem);
}

TEST(CombineTopkSwa, BadArguments) {
  using P = megamla_combine_topk_swa_params;
  Problem problem(3, 4, 2, 128);
  problem.topk.fill<int32_t>(0);
  problem.query_start_loc.assign<int32_t>({0, 2, 3});
  problem.seq_lens.assign<int32_t>({9, 4});
  problem.gather_lens.assign<int32_t>({9, 4});
  problem.params.m = 20;
  problem.params.n = 5;
  BadInput<P> bad("combine_topk_swa", megamla_combine_topk_swa, problem.params, {&problem.indices, &problem.lens});
  bad.tensor("topk", &P::topk, true, 1);
  bad.tensor("query_start_loc", &P::query_start_loc, true, 0);
  bad.tensor("seq_lens", &P::seq_lens, true, 0);
  bad.tensor("gather_lens", &P::gather_lens, true, 0);
  bad.tensor("indices", &P::indices, true, 1);
  bad.tensor("lens", &P::lens, true, 0);
  bad.output("indices", &P::indices, {&P::topk, &P::query_start_loc, &P::seq_lens, &P::gather_lens, &P::lens});
  bad.output("lens", &P::lens, {&P::topk, &P::query_start_loc, &P::seq_lens, &P::gather_lens});
  bad.expect("query_start_loc", "R entries", [](P& p) { p.query_start_loc.shape[0] = 2; });
  bad.expect("gather_lens", "R + 1 entries", [](P& p) { p.gather_lens.shape[0] = 3; });
  bad.expect("window", "0", [](P& p) { p.window = 0; });
  bad.expect("window", "2^40", [](P& p) { p.window = int64_t{1} << 40; });
  bad.expect("compress_ratio", "3", [](P& p) { p.compress_ratio = 3; });
  bad.expect("compress_ratio", "-1", [](P& p) { p.compress_ratio = -1; });
  bad.expect("m", "-1", [](P& p) { p.m = -1; });
  bad.expect("m", "more rows than int32 indices", [](P& p) { p.m = int64_t{1} << 30; });
  bad.expect("n", "more than m", [](P& p) { p.n = 21; });
  bad.expect("n", "-1", [](P& p) { p.n = -1; });
  bad.expect("indices", "width not rounded up", [](P& p) { p.indices.shape[1] = 132; });
  bad.expect("lens", "one row too few", [](P& p) { p.lens.shape[0] = 2; });
}

}  // namespace
}  // namespace megamla::test
