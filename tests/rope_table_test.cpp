// rope_table against the formula in extended precision.
#include "megamla/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

megamla_rope_table_params yarn() {
  megamla_rope_table_params p;
  megamla_rope_table_init(&p);
  p.theta = 160000;
  p.factor = 16;
  return p;
}

long double expected_frequency(const megamla_rope_table_params& p, int j) {
  const long double base = std::pow(static_cast<long double>(p.theta), -2.0L * j / 64);
  if (p.factor == 1) return base;
  const auto dim = [&](long double rotations) {
    return 64 * std::log(p.original_max_position / (rotations * 2 * std::numbers::pi_v<long double>)) /
           (2 * std::log(static_cast<long double>(p.theta)));
  };
  const long double low = std::max(std::floor(dim(p.beta_fast)), 0.0L);
  const long double high = std::min(std::ceil(dim(p.beta_slow)), 63.0L);
  const long double ramp = std::min(std::max((j - low) / (high - low), 0.0L), 1.0L);
  return base * ((1 - ramp) + ramp / p.factor);
}

TEST(RopeTable, MatchesTheFormula) {
  std::mt19937_64 random(6);
  std::vector<int64_t> positions = {0, 1, 2, 65535, 65536, 1048575, 16777217};
  while (positions.size() < 300) positions.push_back(static_cast<int64_t>(random() % 1048576));
  const int64_t rows = static_cast<int64_t>(positions.size());
  TensorBuffer position(MEGAMLA_I64, {rows});
  position.assign(positions);
  TensorBuffer table(MEGAMLA_F32, {rows, 64}, 3);
  TensorBuffer inv_freq(MEGAMLA_F64, {32});
  for (const bool scaled : {false, true}) {
    megamla_rope_table_params p = yarn();
    if (!scaled) megamla_rope_table_init(&p);
    p.positions = position;
    p.cos_sin = table;
    p.inv_freq = inv_freq;
    for (const megamla_device device : kDevices) {
      table.refill();
      inv_freq.refill();
      const megamla_exec exec = exec_on(device, 3);
      ASSERT_EQ(megamla_rope_table(&p, &exec), MEGAMLA_OK) << megamla_last_error();
      for (int j = 0; j < 32; ++j) {
        const long double frequency = expected_frequency(p, j);
        EXPECT_NEAR(inv_freq.at<double>(j) / static_cast<double>(frequency), 1, 1e-14);
        for (int64_t i = 0; i < rows; ++i) {
          const long double angle = static_cast<long double>(positions[static_cast<size_t>(i)]) * frequency;
          ASSERT_NEAR(table.at<float>(i, j), static_cast<double>(std::cos(angle)), 1.2e-7) << i << " " << j;
          ASSERT_NEAR(table.at<float>(i, 32 + j), static_cast<double>(std::sin(angle)), 1.2e-7) << i << " " << j;
        }
      }
      EXPECT_TRUE(table.guards_intact() && inv_freq.guards_intact());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t pad = 64; pad < 67; ++pad) ASSERT_EQ(table.at<uint32_t>(i, pad), 0xa5a5a5a5U);
      }
    }
  }
}

TEST(RopeTable, EngineModeRoundsPositionFrequencyAndAngleToFp32) {
  TensorBuffer position(MEGAMLA_I64, {3});
  position.assign<int64_t>({5, 1000003, 16777217});
  TensorBuffer table(MEGAMLA_F32, {3, 64});
  megamla_rope_table_params p = yarn();
  p.angles = MEGAMLA_ROPE_FP32;
  p.positions = position;
  p.cos_sin = table;
  for (const megamla_device device : kDevices) {
    table.refill();
    const megamla_exec exec = exec_on(device);
    ASSERT_EQ(megamla_rope_table(&p, &exec), MEGAMLA_OK) << megamla_last_error();
    for (int64_t i = 0; i < 3; ++i) {
      for (int j = 0; j < 32; ++j) {
        const float frequency = static_cast<float>(expected_frequency(p, j));
        const float angle = static_cast<float>(position.at<int64_t>(i)) * frequency;
        EXPECT_NEAR(table.at<float>(i, j), std::cos(static_cast<double>(angle)), 1e-7) << i << " " << j;
      }
    }
  }
}

TEST(RopeTable, WithoutPositionsRowsAreCountedAndThreadsDoNotMatter) {
  constexpr int64_t kRows = 70000;
  TensorBuffer table(MEGAMLA_F32, {kRows, 64});
  TensorBuffer one(MEGAMLA_F32, {1, 64});
  TensorBuffer position(MEGAMLA_I64, {1});
  megamla_rope_table_params p = yarn();
  p.cos_sin = table;
  std::vector<std::vector<float>> tables;
  for (const int threads : {1, 2, 5}) {
    const megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU, threads);
    ASSERT_EQ(megamla_rope_table(&p, &exec), MEGAMLA_OK) << megamla_last_error();
    tables.push_back(table.values<float>());
    EXPECT_EQ(tables.back(), tables.front());
  }
  p.cos_sin = one;
  p.positions = position;
  for (const int64_t row : {int64_t{0}, int64_t{65536}, kRows - 1}) {
    position.at<int64_t>(0) = row;
    const megamla_exec exec = exec_on(MEGAMLA_DEVICE_REFERENCE);
    ASSERT_EQ(megamla_rope_table(&p, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_TRUE(same_bytes(one.as<float>(), &table.at<float>(row, 0), 256)) << row;
  }
}

TEST(RopeTable, NoRows) {
  TensorBuffer table(MEGAMLA_F32, {0, 64});
  megamla_rope_table_params p = yarn();
  p.cos_sin = table;
  for (const megamla_device device : kDevices) {
    const megamla_exec exec = exec_on(device);
    EXPECT_EQ(megamla_rope_table(&p, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_TRUE(table.guards_intact());
  }
}

TEST(RopeTable, BadArguments) {
  using P = megamla_rope_table_params;
  TensorBuffer position(MEGAMLA_I64, {3});
  position.fill<int64_t>(1);
  TensorBuffer table(MEGAMLA_F32, {3, 64}, 2);
  TensorBuffer inv_freq(MEGAMLA_F64, {32});
  P p = yarn();
  p.positions = position;
  p.cos_sin = table;
  p.inv_freq = inv_freq;
  BadInput<P> bad("rope_table", megamla_rope_table, p, {&table, &inv_freq});
  bad.tensor("positions", &P::positions, false, 1);
  bad.tensor("cos_sin", &P::cos_sin, true, 1);
  bad.tensor("inv_freq", &P::inv_freq, false, 1);
  bad.output("cos_sin", &P::cos_sin, {&P::positions, &P::inv_freq});
  bad.output("inv_freq", &P::inv_freq, {&P::positions});
  bad.expect("positions", "two positions of three", [](P& q) { q.positions.shape[0] = 2; });
  bad.expect("cos_sin", "32 columns", [](P& q) { q.cos_sin.shape[1] = 32; });
  bad.expect("inv_freq", "64 values", [](P& q) { q.inv_freq.shape[0] = 64; });
  const double kNaN = std::nan("");
  const double kInfinity = HUGE_VAL;
  for (const double value : {1.0, 0.0, -5.0, kNaN, kInfinity}) {
    bad.expect("theta", "theta", [=](P& q) { q.theta = value; });
  }
  for (const double value : {0.5, -1.0, kNaN, kInfinity}) {
    bad.expect("factor", "factor", [=](P& q) { q.factor = value; });
  }
  for (const double value : {0.0, -1.0, kNaN}) {
    bad.expect("original_max_position", "original", [=](P& q) { q.original_max_position = value; });
    bad.expect("beta_slow", "beta_slow", [=](P& q) { q.beta_slow = value; });
    bad.expect("beta_fast", "beta_fast", [=](P& q) { q.beta_fast = value; });
  }
  bad.expect("beta_fast", "not above beta_slow", [](P& q) { q.beta_fast = q.beta_slow; });
  bad.expect("original_max_position", "infinite", [=](P& q) { q.original_max_position = kInfinity; });
  bad.expect("beta_fast", "infinite", [=](P& q) { q.beta_fast = kInfinity; });
  bad.expect("angles", "2", [](P& q) { q.angles = 2; });
  bad.expect("reserved", "1", [](P& q) { q.reserved = 1; });
}

}  // namespace
}  // namespace megamla::test
