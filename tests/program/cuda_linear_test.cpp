// block_scaled_linear on a GPU against the reference, byte for byte: the values are small integers, whose sums fp32
// holds exactly in any order. Skipped on a machine without a GPU that the kernels run on.
#include "support/gpu_problem.hpp"
#include "support/linear_problem.hpp"

namespace megamla::test {
namespace {

struct Shape {
  int64_t tokens, groups, in, out;
  megamla_linear_input input;
  megamla_linear_weight weight;
  megamla_linear_output output;
  int64_t padding = 0;    // elements between rows of x and y
  int scale = 127;        // byte of the smallest weight scale
  bool with_nan = false;  // codes of weights and inputs, a scale
};

class CudaLinear : public CudaOps {
 protected:
  void values(const megamla_tensor& t) {
    if (t.dtype == MEGAMLA_BF16) {
      fill<uint16_t>(t, [&] { return format::to_bf16(static_cast<float>(any(-8, 8))).bits; });
    } else {
      fill<uint8_t>(t, [&] { return format::float_to_e4m3(static_cast<float>(any(-4, 4))); });
    }
  }
  void scales(const megamla_tensor& t, int smallest) {
    fill<uint8_t>(t, [&] { return static_cast<uint8_t>(smallest + any(0, 2)); });
  }

  void check(const Shape& s) {
    SCOPED_TRACE(testing::Message() << "T " << s.tokens << " G " << s.groups << " in " << s.in << " out " << s.out
                                    << " input " << s.input << " weight " << s.weight << " output " << s.output);
    Problem problem;
    api::BlockScaledLinear p;
    p.input = s.input;
    p.weight_kind = s.weight;
    p.output = s.output;
    const megamla_dtype x_type = s.input == MEGAMLA_LINEAR_IN_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3;
    if (s.input == MEGAMLA_LINEAR_IN_MXFP8) {
      p.x = problem.tensor(x_type, {s.tokens, s.in});
      p.x_scale = problem.tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.in / 32)});
      scales(p.x_scale, 127);
    } else {
      p.x = problem.tensor(x_type, {s.tokens, s.groups, s.in}, s.padding);
    }
    values(p.x);
    if (s.input == MEGAMLA_LINEAR_IN_FP8_PAIR) {
      const int64_t words = s.in / 128;
      const int64_t a = format::round_up(s.tokens, 4) + 4;
      const megamla_tensor bytes = problem.tensor(MEGAMLA_F8_E8M0, {s.groups, words, 4 * a});
      scales(bytes, 127);
      p.x_scale = api::with_strides(
          api::tensor(bytes.data, {s.tokens, s.groups, words}, MEGAMLA_I32, bytes.cuda_device), {1, words * a, a});
    }
    const bool bf16 = s.weight == MEGAMLA_LINEAR_WEIGHT_BF16;
    p.weight = problem.tensor(bf16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {s.groups, s.out, s.in});
    values(p.weight);
    if (!bf16) {
      const int64_t rows = s.weight == MEGAMLA_LINEAR_WEIGHT_ROW_32 ? s.out : s.out / 32;
      p.weight_scale = problem.tensor(MEGAMLA_F8_E8M0, {s.groups, rows, s.in / 32});
      scales(p.weight_scale, s.scale);
    }
    if (s.with_nan) {
      at<uint8_t>(p.x, 1, 0, s.in - 1) = 0xff;
      at<uint8_t>(p.weight, 0, 17, 90) = 0x7f;
      at<uint8_t>(p.weight, 0, 58, 0) = 0xff;
      at<uint8_t>(p.weight_scale, 0, 100, 3) = 0xff;
    }
    if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      p.y = problem.tensor(MEGAMLA_F8_E4M3, {s.tokens, s.groups * s.out});
      p.y_scale = problem.tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.groups * s.out / 32)});
    } else {
      p.y = problem.tensor(s.output == MEGAMLA_LINEAR_OUT_F32 ? MEGAMLA_F32 : MEGAMLA_BF16, {s.tokens, s.groups, s.out},
                           s.padding);
    }
    problem.check(p);
  }
};

// Every tile of tokens, its last one full and not; rows that 16 bytes divide and rows that they do not.
TEST_F(CudaLinear, EveryKindOfInputWeightAndOutput) {
  for (const auto input : kLinearInputs) {
    for (const auto weight : kLinearWeights) {
      for (const auto output : kLinearOutputs) {
        for (const int64_t tokens : {0, 1, 3, 8, 9, 16, 20, 32, 50, 64, 100, 128, 129, 300}) {
          const int64_t groups = input == MEGAMLA_LINEAR_IN_MXFP8 ? 1 : 2;
          check({tokens, groups, 384, groups == 1 ? 256 : 192, input, weight, output, tokens % 2 == 0 ? 0 : 3});
        }
      }
    }
  }
}

// Rows and columns that no tile divides, columns shared by several blocks.
TEST_F(CudaLinear, OddShapes) {
  for (int round = 0; round < 60; ++round) {
    check({any(1, 150), any(1, 3), 32 * any(1, 70), any(1, 300), MEGAMLA_LINEAR_IN_BF16,
           round % 3 == 0 ? MEGAMLA_LINEAR_WEIGHT_BF16 : MEGAMLA_LINEAR_WEIGHT_ROW_32,
           round % 2 == 0 ? MEGAMLA_LINEAR_OUT_F32 : MEGAMLA_LINEAR_OUT_BF16, any(0, 8)});
  }
}

TEST_F(CudaLinear, RealGeometry) {
  for (const int64_t tokens : {1, 16, 128}) {
    check({tokens, 2, 4096, 1024, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_MXFP8});
    check({tokens, 1, 5120, 1792, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16});
    check({tokens, 1, 5120, 1024, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_OUT_F32});
    check({tokens, 1, 8192, 320, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16});
    check({tokens, 1, 1280, 2048, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_BF16});
    check({tokens, 1, 4096, 96, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32, 8});
  }
}

// Scales at which widening takes another way, and at which values are far from 1.
TEST_F(CudaLinear, LargeAndSmallScales) {
  for (const int scale : {40, 97, 132, 133, 160, 210}) {
    for (const int64_t tokens : {2, 40, 100}) {
      check({tokens, 1, 256, 160, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_F32, 0,
             scale});
    }
  }
}

// So many tokens and rows that codes are multiplied as they are: scales that rows share and scales of their own, tiles
// that end early.
TEST_F(CudaLinear, ManyTokensInFp8) {
  check({1000, 1, 1024, 2304, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_MXFP8});
  check({1000, 1, 1024, 2300, MEGAMLA_LINEAR_IN_MXFP8, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32, 3});
  check({1020, 2, 1024, 1152, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_MXFP8, 0,
         200, true});
}

// Sums of real values round: their order shows.
TEST_F(CudaLinear, BatchInvariant) {
  const auto first_token = [](int64_t tokens, megamla_linear_input input) {
    Problem problem;
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    const auto real = [&] { return format::float_to_e4m3(50 * normal(random)); };
    const auto scale = [&] { return static_cast<uint8_t>(120 + random() % 4); };
    api::BlockScaledLinear p;
    p.batch_invariant = 1;
    p.weight_kind = MEGAMLA_LINEAR_WEIGHT_ROW_32;
    p.weight = problem.tensor(MEGAMLA_F8_E4M3, {1, 256, 2048});
    fill<uint8_t>(p.weight, real);
    p.weight_scale = problem.tensor(MEGAMLA_F8_E8M0, {1, 256, 64});
    fill<uint8_t>(p.weight_scale, scale);
    const auto again = [&](uint64_t seed) {  // the first token's values must not depend on the others'
      random.seed(seed);
      normal.reset();
    };
    again(4);
    p.input = input;
    p.x = problem.tensor(input == MEGAMLA_LINEAR_IN_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {tokens, 2048});
    if (input == MEGAMLA_LINEAR_IN_BF16) {
      fill<uint16_t>(p.x, [&] { return format::to_bf16(normal(random)).bits; });
    } else {
      fill<uint8_t>(p.x, real);
      again(5);
      p.x_scale = problem.tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(tokens, 64)});
      fill<uint8_t>(p.x_scale, scale);
    }
    p.output = MEGAMLA_LINEAR_OUT_F32;
    p.y = problem.tensor(MEGAMLA_F32, {tokens, 256});
    problem.run(p);
    return std::vector<float>(data<float>(p.y), data<float>(p.y) + 256);
  };
  for (const auto input : {MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_IN_MXFP8}) {
    const std::vector<float> alone = first_token(1, input);
    for (const int64_t tokens : {9, 32, 60, 128, 300}) {
      EXPECT_EQ(first_token(tokens, input), alone) << tokens << " tokens, input " << input;
    }
  }
}

// A NaN spoils its own rows and tokens; e4m3 has one NaN, so that bytes can be compared.
TEST_F(CudaLinear, NanStaysInItsRow) {
  for (const int64_t tokens : {2, 12, 40, 130}) {
    check({tokens, 1, 256, 128, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_MXFP8, 0,
           127, true});
  }
}

}  // namespace
}  // namespace megamla::test
