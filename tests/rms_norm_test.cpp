// rms_norm: every implementation against long double, and the CPU's bits the same for every instruction set.
#include "megamla/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support/bad_input.hpp"
#include "support/simd_targets.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

struct Problem {
  TensorBuffer x, weight, y;
  megamla_rms_norm_params params;

  Problem(megamla_dtype dtype, int64_t rows, int64_t width, std::mt19937& random)
      : x(dtype, {rows, width}), weight(MEGAMLA_BF16, {width}), y(MEGAMLA_BF16, {rows, width}) {
    std::normal_distribution<float> normal;
    for (int64_t t = 0; t < rows; ++t) {
      const float scale = std::ldexp(1.0F, static_cast<int>(random() % 40) - 20);
      for (int64_t d = 0; d < width; ++d) {
        const float value = normal(random) * scale;
        if (dtype == MEGAMLA_F32) {
          x.at<float>(t, d) = value;
        } else {
          x.at<format::Bf16>(t, d) = format::to_bf16(value);
        }
      }
    }
    for (int64_t d = 0; d < width; ++d) weight.at<format::Bf16>(d) = format::to_bf16(normal(random));
    megamla_rms_norm_init(&params);
    params.x = x;
    params.weight = weight;
    params.y = y;
  }

  float value(int64_t t, int64_t d) {
    return params.x.dtype == MEGAMLA_F32 ? x.at<float>(t, d) : format::to_float(x.at<format::Bf16>(t, d));
  }
  std::vector<uint8_t> run(megamla_device device, int threads) {
    y.refill();
    const megamla_exec exec = exec_on(device, threads);
    EXPECT_EQ(megamla_rms_norm(&params, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_TRUE(y.guards_intact());
    return y.bytes();
  }
};

// Rounded once: within half a step of bf16, a little more for the roundings before it.
void expect_norm(Problem& problem) {
  for (int64_t t = 0; t < problem.params.x.shape[0]; ++t) {
    const int64_t width = problem.params.x.shape[1];
    long double squares = 0;
    for (int64_t d = 0; d < width; ++d) squares += static_cast<long double>(problem.value(t, d)) * problem.value(t, d);
    const long double factor =
        1 / std::sqrt(squares / static_cast<long double>(width) + static_cast<long double>(problem.params.eps));
    for (int64_t d = 0; d < width; ++d) {
      const long double weight = format::to_float(problem.weight.at<format::Bf16>(d));
      const long double wanted = problem.value(t, d) * factor * weight;
      const float got = format::to_float(problem.y.at<format::Bf16>(t, d));
      ASSERT_LE(std::abs(got - wanted), std::abs(wanted) * 0x1.0001p-8L) << "row " << t << " dim " << d;
    }
  }
}

TEST(RmsNorm, EveryWidthTypeImplementationAndInstructionSet) {
  std::mt19937 random(81);
  for (const int64_t width : {1, 7, 8, 31, 32, 33, 100, 512, 1280, 5120}) {
    for (const megamla_dtype dtype : {MEGAMLA_BF16, MEGAMLA_F32}) {
      SCOPED_TRACE(testing::Message() << "width " << width << " dtype " << dtype);
      Problem problem(dtype, 5, width, random);
      problem.run(MEGAMLA_DEVICE_REFERENCE, 1);
      expect_norm(problem);
      const std::vector<uint8_t> bits = problem.run(MEGAMLA_DEVICE_CPU, 1);
      expect_norm(problem);
      on_every_target([&] {
        ASSERT_TRUE(problem.run(MEGAMLA_DEVICE_CPU, 1) == bits);
        ASSERT_TRUE(problem.run(MEGAMLA_DEVICE_CPU, 3) == bits) << "with 3 threads";
      });
    }
  }
}

TEST(RmsNorm, RowsOfZerosAndRowsWithNan) {
  std::mt19937 random(83);
  Problem problem(MEGAMLA_F32, 3, 64, random);
  for (int64_t d = 0; d < 64; ++d) problem.x.at<float>(0, d) = 0;
  problem.x.at<float>(1, 9) = std::nanf("");
  for (const megamla_device device : kDevices) {
    problem.run(device, 1);
    for (int64_t d = 0; d < 64; ++d) {
      EXPECT_EQ(format::to_float(problem.y.at<format::Bf16>(0, d)), 0.0F);
      EXPECT_TRUE(std::isfinite(format::to_float(problem.y.at<format::Bf16>(2, d))));
    }
    EXPECT_TRUE(std::isnan(format::to_float(problem.y.at<format::Bf16>(1, 9))));
  }
}

}  // namespace
}  // namespace megamla::test
