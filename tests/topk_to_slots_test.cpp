// topk_to_slots against the contract's sentence, entry by entry, and against hostile lists.
#include <gtest/gtest.h>

#include <random>

#include "megamla/index_ops.h"
#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

struct Problem {
  TensorBuffer topk, token_to_req, is_valid, table, slots, lens;
  megamla_topk_to_slots_params params;

  Problem(int64_t n, int64_t width, int64_t requests, int64_t columns, int64_t page)
      : topk(MEGAMLA_I32, {n, width}, 3),
        token_to_req(MEGAMLA_I32, {n}),
        is_valid(MEGAMLA_U8, {n}),
        table(MEGAMLA_I32, {requests, columns}, 2),
        slots(MEGAMLA_I32, {n, width}, 5),
        lens(MEGAMLA_I32, {n}) {
    megamla_topk_to_slots_init(&params);
    params.topk = topk;
    params.token_to_req = token_to_req;
    params.is_valid_token = is_valid;
    params.block_table = table;
    params.slots_per_page = page;
    params.slots = slots;
    params.lens = lens;
  }
};

// table[req, l / s] * s + l % s in exact arithmetic; what does not exist or does not fit is -1.
int32_t expected_slot(const megamla_topk_to_slots_params& p, int64_t token, int64_t i) {
  if (at<uint8_t>(p.is_valid_token, token) == 0) return -1;
  const int64_t request = at<int32_t>(p.token_to_req, token);
  const int64_t local = at<int32_t>(p.topk, token, i);
  if (request < 0 || request >= p.block_table.shape[0] || local < 0) return -1;
  if (local / p.slots_per_page >= p.block_table.shape[1]) return -1;
  const int64_t page = at<int32_t>(p.block_table, request, local / p.slots_per_page);
  if (page < 0 || (p.num_pages > 0 && page >= p.num_pages)) return -1;
  const double slot =
      static_cast<double>(page) * static_cast<double>(p.slots_per_page) + static_cast<double>(local % p.slots_per_page);
  return slot > 2147483647.0 ? -1 : static_cast<int32_t>(slot);
}

void check(Problem& problem) {
  for (const megamla_device device : kDevices) {
    for (const int threads : {1, 3}) {
      problem.slots.refill();
      problem.lens.refill();
      const megamla_exec exec = exec_on(device, threads);
      ASSERT_EQ(megamla_topk_to_slots(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
      for (int64_t t = 0; t < problem.topk.view().shape[0]; ++t) {
        int32_t count = 0;
        for (int64_t i = 0; i < problem.topk.view().shape[1]; ++i) {
          const int32_t slot = expected_slot(problem.params, t, i);
          ASSERT_EQ(problem.slots.at<int32_t>(t, i), slot) << device_name(device) << " token " << t << " entry " << i;
          count += slot >= 0 ? 1 : 0;
        }
        ASSERT_EQ(problem.lens.at<int32_t>(t), count) << device_name(device) << " token " << t;
      }
      EXPECT_TRUE(problem.slots.guards_intact() && problem.lens.guards_intact());
    }
  }
}

TEST(TopkToSlots, RandomShapesAndHostileValues) {
  std::mt19937 random(1);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 60; ++round) {
    const int64_t page = std::vector<int64_t>{1, 2, 53, 64, 128, 69}[random() % 6];
    Problem problem(below(40), below(70), 1 + below(5), below(9), page);
    const int64_t reach = page * (problem.table.view().shape[1] + 1) + 1;  // one page too far
    problem.params.num_pages = round % 3 == 0 ? 20 : 0;
    for (int64_t i = 0; i < problem.topk.view().shape[0] * problem.topk.view().stride[0]; ++i) {
      problem.topk.as<int32_t>()[i] = random() % 8 == 0 ? -below(INT32_MAX) : below(reach);
      if (random() % 50 == 0) problem.topk.as<int32_t>()[i] = INT32_MAX;
    }
    for (int64_t i = 0; i < problem.table.view().shape[0] * problem.table.view().stride[0]; ++i) {
      problem.table.as<int32_t>()[i] = random() % 10 == 0 ? -1 - below(INT32_MAX) : below(30);
      if (random() % 20 == 0) problem.table.as<int32_t>()[i] = INT32_MAX - below(3);
    }
    for (int64_t t = 0; t < problem.token_to_req.view().shape[0]; ++t) {
      const int64_t requests = problem.table.view().shape[0];
      const int32_t hostile[] = {-1, INT32_MIN, static_cast<int32_t>(requests), INT32_MAX};
      problem.token_to_req.at<int32_t>(t) = random() % 8 == 0 ? hostile[random() % 4] : below(requests);
      problem.is_valid.at<uint8_t>(t) = random() % 6 == 0 ? 0 : static_cast<uint8_t>(1 + below(255));
    }
    check(problem);
  }
}

TEST(TopkToSlots, LargestSlotIdAndTheOneBeyond) {
  Problem problem(1, 4, 1, 1, INT32_MAX);
  problem.topk.assign<int32_t>({INT32_MAX - 1, 0, 1, INT32_MAX});
  problem.token_to_req.fill<int32_t>(0);
  problem.is_valid.fill<uint8_t>(1);
  problem.table.fill<int32_t>(1);  // slot 2^31 - 1 + l
  check(problem);
  EXPECT_EQ(problem.slots.at<int32_t>(0, 1), INT32_MAX);
  EXPECT_EQ(problem.slots.at<int32_t>(0, 2), -1);
}

TEST(TopkToSlots, MoreTokensThanAGridDimension) {
  Problem problem(70000, 2, 131072, 1, 32);
  for (int32_t t = 0; t < 70000; ++t) {
    problem.topk.at<int32_t>(t, 0) = t % 32;
    problem.topk.at<int32_t>(t, 1) = -1;
    problem.token_to_req.at<int32_t>(t) = t + 60000;
    problem.is_valid.at<uint8_t>(t) = 1;
  }
  for (int32_t r = 0; r < 131072; ++r) problem.table.at<int32_t>(r, 0) = 131071 - r;
  check(problem);
}

TEST(TopkToSlots, WithoutValidityEveryTokenCounts) {
  Problem problem(3, 2, 1, 2, 4);
  problem.topk.fill<int32_t>(5);
  problem.token_to_req.fill<int32_t>(0);
  problem.table.fill<int32_t>(7);
  problem.is_valid.fill<uint8_t>(1);
  check(problem);
  problem.params.is_valid_token = {nullptr, 0, 0, -1, 0, {}, {}};
  for (const megamla_device device : kDevices) {
    problem.slots.refill();
    const megamla_exec exec = exec_on(device);
    ASSERT_EQ(megamla_topk_to_slots(&problem.params, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_EQ(problem.slots.at<int32_t>(2, 1), 7 * 4 + 1);
    EXPECT_EQ(problem.lens.at<int32_t>(2), 2);
  }
}

TEST(TopkToSlots, BadArguments) {
  using P = megamla_topk_to_slots_params;
  Problem problem(3, 4, 2, 3, 8);
  problem.topk.fill<int32_t>(1);
  problem.token_to_req.fill<int32_t>(0);
  problem.is_valid.fill<uint8_t>(1);
  problem.table.fill<int32_t>(1);
  BadInput<P> bad("topk_to_slots", megamla_topk_to_slots, problem.params, {&problem.slots, &problem.lens});
  bad.tensor("topk", &P::topk, true, 1);
  bad.tensor("token_to_req", &P::token_to_req, true, 0);
  bad.tensor("is_valid_token", &P::is_valid_token, false, 0);
  bad.tensor("block_table", &P::block_table, true, 1);
  bad.tensor("slots", &P::slots, true, 1);
  bad.tensor("lens", &P::lens, true, 0);
  bad.output("slots", &P::slots, {&P::topk, &P::token_to_req, &P::is_valid_token, &P::block_table, &P::lens});
  bad.output("lens", &P::lens, {&P::topk, &P::token_to_req, &P::is_valid_token, &P::block_table});
  bad.expect("token_to_req", "four tokens of three", [](P& p) { p.token_to_req.shape[0] = 4; });
  bad.expect("is_valid_token", "two tokens of three", [](P& p) { p.is_valid_token.shape[0] = 2; });
  bad.expect("slots", "too narrow", [](P& p) { p.slots.shape[1] = 3; });
  bad.expect("lens", "too short", [](P& p) { p.lens.shape[0] = 2; });
  bad.expect("slots_per_page", "0", [](P& p) { p.slots_per_page = 0; });
  bad.expect("slots_per_page", "2^31", [](P& p) { p.slots_per_page = int64_t{1} << 31; });
  bad.expect("num_pages", "-1", [](P& p) { p.num_pages = -1; });
}

}  // namespace
}  // namespace megamla::test
