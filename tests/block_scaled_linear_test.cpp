// block_scaled_linear against sums in double computed from the stored codes: every kind of input, weight and output, on
// every device.
#include "megamla/block_scaled_linear.h"

#include <gtest/gtest.h>

#include "support/every_implementation.hpp"
#include "support/linear_problem.hpp"

namespace megamla::test {
namespace {

using Params = megamla_block_scaled_linear_params;
using format::Bf16;

// The rules: what fp32 accumulation loses (contract section 16), then the rounding of the output. `slack`: what a sum
// may be off by beside that.
void compare(const LinearShape& s, const LinearProblem& problem, const char* device, int64_t row_step = 1,
             double slack = 0) {
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t g = 0; g < s.groups; ++g) {
      for (int64_t n = t % row_step; n < s.out; n += row_step) {
        double sum = 0;
        double magnitude = 0;
        problem.expected(t, g, n, &sum, &magnitude);
        double bound = 2e-6 * magnitude + slack;
        if (s.output == MEGAMLA_LINEAR_OUT_BF16) bound += std::abs(sum) * 1.001 / 256;
        if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
          // Half a step of e4m3, or of its subnormals, on top of the bf16 rounding.
          const double scale = format::ue8m0_to_float(problem.scale_byte(t, g * s.out + n));
          bound += std::abs(sum) * (1.01 / 16 + 1.0 / 256) + 0x1p-10 * scale;
        }
        ASSERT_LE(std::abs(problem.result(t, g, n) - sum), bound)
            << device << " token " << t << " group " << g << " row " << n << ": expected " << sum;
      }
    }
  }
}

// MXFP8: the bytes of padding rows and columns are 0, the others those of a largest value between 224 and 448 scales.
void check_scales(const LinearShape& s, const LinearProblem& problem) {
  const int64_t columns = s.groups * s.out / 32;
  std::vector<bool> used(static_cast<size_t>(problem.y_scale.view().shape[0]));
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t k = 0; k < columns; ++k) {
      used[static_cast<size_t>(format::f8_128x4_index(columns, t, k))] = true;
      uint8_t largest = 0;
      for (int64_t i = 0; i < 32; ++i) {
        const uint8_t code = problem.y.as<uint8_t>()[t * s.groups * s.out + k * 32 + i];
        largest = std::max<uint8_t>(largest, code & 0x7fU);
      }
      EXPECT_LE(format::e4m3_to_float(largest), 448.0F);
      EXPECT_GE(format::e4m3_to_float(largest), 224.0F);
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      ASSERT_EQ(problem.y_scale.as<uint8_t>()[i], 0) << i;
    }
  }
}

void check(const LinearShape& s, uint64_t seed, int64_t row_step = 1) {
  SCOPED_TRACE(name_of(s));
  LinearProblem problem(s, seed);
  for (const megamla_device device : kDevices) {
    ASSERT_NO_FATAL_FAILURE(problem.run(device));
    ASSERT_NO_FATAL_FAILURE(compare(s, problem, device_name(device), row_step));
    if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      ASSERT_NO_FATAL_FAILURE(check_scales(s, problem));
    }
  }
}

TEST(BlockScaledLinear, EveryKindOfInputWeightAndOutput) {
  uint64_t seed = 1;
  for (const auto input : kLinearInputs) {
    for (const auto weight : kLinearWeights) {
      for (const auto output : kLinearOutputs) {
        for (const int64_t tokens : {3, 37}) {
          const int64_t groups = input == MEGAMLA_LINEAR_IN_MXFP8 ? 1 : 2;
          check({tokens, groups, 256, 192 - 64 * (groups % 2), input, weight, output, 32}, ++seed);
        }
      }
    }
  }
}

TEST(BlockScaledLinear, TokenCountsAroundTheTiles) {
  for (const int64_t tokens : {0, 1, 2, 4, 5, 6, 7, 8, 9, 16, 17, 33, 127, 128, 129, 257}) {
    check({tokens, 1, 128, 128, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_MXFP8},
          static_cast<uint64_t>(tokens), tokens > 100 ? 3 : 1);
    check({tokens, 2, 96, 32, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16, 8},
          static_cast<uint64_t>(tokens) + 1000);
  }
}

// Panels that are not full, a last half register of columns, rows that no tile divides.
TEST(BlockScaledLinear, OddShapes) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 30; ++round) {
    const auto tokens = static_cast<int64_t>(1 + random() % 40);
    const auto in = static_cast<int64_t>(32 * (1 + random() % 9));
    const auto out = static_cast<int64_t>(1 + random() % 150);
    check({tokens, static_cast<int64_t>(1 + random() % 3), in, out, MEGAMLA_LINEAR_IN_BF16,
           round % 3 == 0 ? MEGAMLA_LINEAR_WEIGHT_BF16 : MEGAMLA_LINEAR_WEIGHT_ROW_32,
           round % 2 == 0 ? MEGAMLA_LINEAR_OUT_F32 : MEGAMLA_LINEAR_OUT_BF16, static_cast<int64_t>(random() % 2 * 8)},
          random());
  }
}

// Every implementation, also those that this machine does not choose by itself.
class BlockScaledLinearOn : public EveryImplementation<Params> {
 protected:
  void check(const LinearShape& s, uint64_t seed, int64_t row_step = 1) {
    SCOPED_TRACE(name_of(s));
    LinearProblem problem(s, seed);
    if (!left_to_another(problem.params).empty()) return;
    expect_ok(run(problem.params));
    EXPECT_TRUE(problem.y.guards_intact() && problem.y_scale.guards_intact());
    // Tensor cores add in an order and to a width of their own.
    ASSERT_NO_FATAL_FAILURE(
        compare(s, problem, GetParam()->name, row_step, on_gpu() ? 1e-3 * root_mean_square(s, problem) : 0));
    if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      ASSERT_NO_FATAL_FAILURE(check_scales(s, problem));
    }
  }

 private:
  // Of some results.
  static double root_mean_square(const LinearShape& s, const LinearProblem& problem) {
    double squares = 0;
    for (int64_t n = 0; n < s.out; ++n) {
      double sum = 0;
      double magnitude = 0;
      problem.expected(n % s.tokens, n % s.groups, n, &sum, &magnitude);
      squares += sum * sum;
    }
    return std::sqrt(squares / static_cast<double>(s.out));
  }
};
MEGAMLA_EVERY_IMPLEMENTATION(BlockScaledLinearOn);

TEST_P(BlockScaledLinearOn, EveryKindOfInputWeightAndOutput) {
  uint64_t seed = 50;
  for (const auto input : kLinearInputs) {
    for (const auto weight : kLinearWeights) {
      for (const auto output : {MEGAMLA_LINEAR_OUT_F32, MEGAMLA_LINEAR_OUT_MXFP8}) {
        for (const int64_t tokens : {7, 30}) {
          const int64_t groups = input == MEGAMLA_LINEAR_IN_MXFP8 ? 1 : 2;
          check({tokens, groups, 256, 192 - 64 * (groups % 2), input, weight, output}, ++seed);
        }
      }
    }
  }
}

TEST_P(BlockScaledLinearOn, ManyTokens) {
  if (!on_gpu()) GTEST_SKIP() << "kernels of their own are the GPU's";
  for (const auto input : {MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_IN_BF16}) {
    for (const auto weight : {MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_WEIGHT_BLOCK_32}) {
      check({1100, 2, 2048, 1152, input, weight, MEGAMLA_LINEAR_OUT_BF16}, 7, 61);
    }
  }
}

// wo_a on one group of eight heads, a decode step and a prefill block.
TEST(BlockScaledLinear, RealGeometry) {
  for (const int64_t tokens : {2, 40}) {
    check({tokens, 1, 4096, 1024, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_BF16},
          static_cast<uint64_t>(tokens), 61);
  }
}

TEST(BlockScaledLinear, ThreadsDoNotChangeABit) {
  for (const int64_t tokens : {1, 5, 300}) {
    const LinearShape s{
        tokens, 2, 512, 320, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32};
    LinearProblem problem(s, 9);
    for (const megamla_device device : kDevices) {
      if (device == MEGAMLA_DEVICE_REFERENCE && tokens > 100) continue;
      ASSERT_NO_FATAL_FAILURE(problem.run(device, 1));
      const std::vector<uint8_t> one = problem.y.bytes();
      for (const int threads : {2, 3, 5}) {
        ASSERT_NO_FATAL_FAILURE(problem.run(device, threads));
        EXPECT_TRUE(problem.y.bytes() == one) << device_name(device) << " with " << threads << " threads";
      }
    }
  }
}

// In a small step a token's bits do not depend on the others.
TEST(BlockScaledLinear, SmallStepsAreBatchInvariant) {
  const LinearShape s{11, 1, 288, 96, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32};
  LinearProblem problem(s, 4);
  const char* name = nullptr;
  ASSERT_EQ(megamla_block_scaled_linear_implementation(&problem.params, MEGAMLA_DEVICE_CPU, &name), MEGAMLA_OK);
  if (std::string(name) != "cpu.avx512_bf16") GTEST_SKIP() << "this machine multiplies through " << name;
  ASSERT_NO_FATAL_FAILURE(problem.run(MEGAMLA_DEVICE_CPU));
  const std::vector<uint32_t> whole = problem.y.values<uint32_t>();
  const Params all = problem.params;
  for (int64_t t = 0; t < s.tokens; ++t) {
    problem.params.x = slice(all.x, t, t + 1);
    problem.params.y = slice(all.y, t, t + 1);
    ASSERT_NO_FATAL_FAILURE(problem.run(MEGAMLA_DEVICE_CPU));
    for (int64_t n = 0; n < s.out; ++n) {
      ASSERT_EQ(problem.y.at<uint32_t>(t, 0, n), whole[static_cast<size_t>(t * s.out + n)]) << t << " " << n;
    }
  }
}

// A NaN weight code or scale spoils its own rows, a NaN input its own token; nothing else.
TEST(BlockScaledLinear, NanStaysInItsRow) {
  for (const int64_t tokens : {3, 40}) {
    const LinearShape s{
        tokens, 1, 128, 64, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_BF16};
    LinearProblem problem(s, 8);
    problem.weight.at<uint8_t>(0, 17, 90) = 0x7f;
    problem.weight.at<uint8_t>(0, 18, 0) = 0xff;
    problem.weight_scale.at<uint8_t>(0, 40, 3) = 0xff;
    problem.x.at<uint8_t>(1, 0, 127) = 0xff;
    for (const megamla_device device : kDevices) {
      ASSERT_NO_FATAL_FAILURE(problem.run(device));
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < s.out; ++n) {
          const bool spoilt = n == 17 || n == 18 || n == 40 || t == 1;
          ASSERT_EQ(std::isnan(problem.result(t, 0, n)), spoilt) << device_name(device) << " " << t << " " << n;
        }
      }
    }
  }
}

// Scale bytes at the ends of the range meet codes of zero: an all-zero group of a checkpoint has byte 0.
TEST(BlockScaledLinear, ExtremeScalesOfZeroGroups) {
  for (const int64_t tokens : {2, 40}) {
    const LinearShape s{
        tokens, 1, 128, 64, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_F32};
    LinearProblem problem(s, 3);
    for (int64_t n = 0; n < s.out; ++n) {
      for (int64_t i = 32; i < 96; ++i) problem.weight.at<uint8_t>(0, n, i) = n % 2 == 0 ? 0x00 : 0x80;
    }
    for (int64_t b = 0; b < s.out / 32; ++b) {
      problem.weight_scale.at<uint8_t>(0, b, 1) = 0;
      problem.weight_scale.at<uint8_t>(0, b, 2) = 254;
    }
    for (const megamla_device device : kDevices) {
      ASSERT_NO_FATAL_FAILURE(problem.run(device));
      ASSERT_NO_FATAL_FAILURE(compare(s, problem, device_name(device)));
    }
  }
}

// One row for every token, by a stride of 0; and groups that share their input.
TEST(BlockScaledLinear, RepeatedInputs) {
  for (const int64_t tokens : {4, 40}) {
    const LinearShape s{tokens, 2, 64, 64, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_OUT_F32};
    LinearProblem problem(s, 6);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t g = 0; g < 2; ++g) std::copy_n(problem.x.as<Bf16>(), 64, &problem.x.at<Bf16>(t, g, 0));
    }
    problem.params.x.stride[0] = problem.params.x.stride[1] = 0;
    for (const megamla_device device : kDevices) {
      ASSERT_NO_FATAL_FAILURE(problem.run(device));
      ASSERT_NO_FATAL_FAILURE(compare(s, problem, device_name(device)));
    }
  }
}

TEST(BlockScaledLinear, RanksMayLeaveOutOneGroup) {
  const LinearShape s{5, 1, 64, 32, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16};
  LinearProblem problem(s, 2);
  problem.params.x = host_tensor(problem.x.view().data, MEGAMLA_BF16, {5, 64});
  problem.params.weight = host_tensor(problem.weight.view().data, MEGAMLA_F8_E4M3, {32, 64});
  problem.params.weight_scale = host_tensor(problem.weight_scale.view().data, MEGAMLA_F8_E8M0, {1, 2});
  problem.params.y = host_tensor(problem.y.view().data, MEGAMLA_BF16, {5, 32});
  for (const megamla_device device : kDevices) {
    ASSERT_NO_FATAL_FAILURE(problem.run(device));
    ASSERT_NO_FATAL_FAILURE(compare(s, problem, device_name(device)));
  }
}

}  // namespace
}  // namespace megamla::test
