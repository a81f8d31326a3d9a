// block_scaled_linear against sums in double computed here from the stored codes: every kind of input, weight and
// output, on every device.
#include "megamla/block_scaled_linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cpu/block_scaled_linear.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "format/small_float.hpp"
#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

using Params = megamla_block_scaled_linear_params;
using format::Bf16;

struct Shape {
  int64_t tokens, groups, in, out;
  megamla_linear_input input;
  megamla_linear_weight weight;
  megamla_linear_output output;
  int64_t padding = 0;  // elements between rows of x and y
};

std::string name_of(const Shape& s) {
  return fmt::format("T {} G {} in {} out {} input {} weight {} output {} padding {}", s.tokens, s.groups, s.in, s.out,
                     static_cast<int>(s.input), static_cast<int>(s.weight), static_cast<int>(s.output), s.padding);
}

megamla_dtype dtype_of(megamla_linear_output output) {
  return output == MEGAMLA_LINEAR_OUT_F32    ? MEGAMLA_F32
         : output == MEGAMLA_LINEAR_OUT_BF16 ? MEGAMLA_BF16
                                             : MEGAMLA_F8_E4M3;
}

// A call with random operands. Scales span eight powers of two; codes are any but NaN.
class Problem {
 public:
  Problem(const Shape& s, uint64_t seed)
      : s_(s),
        x(s.input == MEGAMLA_LINEAR_IN_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {s.tokens, s.groups, s.in},
          s.input == MEGAMLA_LINEAR_IN_MXFP8 ? 0 : s.padding),
        pair_scale(MEGAMLA_I32, {s.groups, s.in / 128, format::round_up(s.tokens, 4) + 4}),
        flat_scale(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.in / 32)}),
        weight(s.weight == MEGAMLA_LINEAR_WEIGHT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {s.groups, s.out, s.in}),
        weight_scale(MEGAMLA_F8_E8M0,
                     {s.groups, s.weight == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? s.out / 32 : s.out, s.in / 32}),
        y(dtype_of(s.output), {s.tokens, s.groups, s.out}, s.output == MEGAMLA_LINEAR_OUT_MXFP8 ? 0 : s.padding),
        y_scale(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.groups * s.out / 32)}) {
    std::mt19937_64 random(seed);
    fill_values(x, random);
    fill_values(weight, random);
    fill_scales(pair_scale, random);
    fill_scales(flat_scale, random);
    fill_scales(weight_scale, random);
    megamla_block_scaled_linear_init(&params);
    params.input = s.input;
    params.weight_kind = s.weight;
    params.output = s.output;
    params.x = x;
    params.weight = weight;
    params.y = y;
    if (s.input == MEGAMLA_LINEAR_IN_FP8_PAIR) params.x_scale = pair_view();
    if (s.input == MEGAMLA_LINEAR_IN_MXFP8) {
      params.x_scale = flat_scale;
      params.x = host_tensor(x.view().data, MEGAMLA_F8_E4M3, {s.tokens, s.in});
    }
    if (s.weight != MEGAMLA_LINEAR_WEIGHT_BF16) params.weight_scale = weight_scale;
    if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      params.y = host_tensor(y.view().data, MEGAMLA_F8_E4M3, {s.tokens, s.groups * s.out});
      params.y_scale = y_scale;
    }
  }

  double x_value(int64_t t, int64_t g, int64_t i) const {
    if (s_.input == MEGAMLA_LINEAR_IN_BF16) return format::to_float(x.at<Bf16>(t, g, i));
    uint8_t scale = flat_scale.as<uint8_t>()[format::f8_128x4_index(s_.in / 32, t, i / 32)];
    if (s_.input == MEGAMLA_LINEAR_IN_FP8_PAIR) {
      // Byte k % 4 of word k / 4, little endian.
      std::memcpy(&scale, reinterpret_cast<const char*>(&pair_scale.at<int32_t>(g, i / 128, t)) + i / 32 % 4, 1);
    }
    return static_cast<double>(format::e4m3_to_float(x.at<uint8_t>(t, g, i))) * format::ue8m0_to_float(scale);
  }
  double weight_value(int64_t g, int64_t n, int64_t i) const {
    if (s_.weight == MEGAMLA_LINEAR_WEIGHT_BF16) return format::to_float(weight.at<Bf16>(g, n, i));
    const uint8_t scale = weight_scale.at<uint8_t>(g, s_.weight == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? n / 32 : n, i / 32);
    return static_cast<double>(format::e4m3_to_float(weight.at<uint8_t>(g, n, i))) * format::ue8m0_to_float(scale);
  }

  // The sum, and the sum of the magnitudes: what fp32 accumulation may be off by is a small part of it.
  void expected(int64_t t, int64_t g, int64_t n, double* sum, double* magnitude) const {
    *sum = *magnitude = 0;
    for (int64_t i = 0; i < s_.in; ++i) {
      const double product = x_value(t, g, i) * weight_value(g, n, i);
      *sum += product;
      *magnitude += std::abs(product);
    }
  }

  // Result (t, g, n), dequantised.
  double result(int64_t t, int64_t g, int64_t n) const {
    if (s_.output == MEGAMLA_LINEAR_OUT_F32) return y.at<float>(t, g, n);
    if (s_.output == MEGAMLA_LINEAR_OUT_BF16) return format::to_float(y.at<Bf16>(t, g, n));
    return static_cast<double>(format::e4m3_to_float(y.at<uint8_t>(t, g, n))) *
           format::ue8m0_to_float(scale_byte(t, g * s_.out + n));
  }
  uint8_t scale_byte(int64_t t, int64_t column) const {
    return y_scale.as<uint8_t>()[format::f8_128x4_index(s_.groups * s_.out / 32, t, column / 32)];
  }

  megamla_limits limits(int threads) const {
    megamla_limits limits = MEGAMLA_LIMITS_INIT;
    limits.tokens = s_.tokens;
    limits.groups = s_.groups;
    limits.in_features = s_.in;
    limits.out_features = s_.out;
    limits.num_threads = threads;
    return limits;
  }
  int64_t workspace_bytes(megamla_device device, int threads) const {
    const megamla_limits limits = this->limits(threads);
    int64_t bytes = -1;
    EXPECT_EQ(megamla_block_scaled_linear_workspace_size(&limits, device, &bytes), MEGAMLA_OK);
    return bytes;
  }

  void run(megamla_device device, int threads = 2) {
    y.refill();
    y_scale.refill();
    Workspace workspace(workspace_bytes(device, threads));
    megamla_exec exec = exec_on(device, threads);
    workspace.attach(exec);
    ASSERT_EQ(megamla_block_scaled_linear(&params, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_TRUE(workspace.guards_intact());
    EXPECT_TRUE(y.guards_intact());
    EXPECT_TRUE(y_scale.guards_intact());
  }

 private:
  Shape s_;

  megamla_tensor pair_view() const {
    megamla_tensor t = pair_scale;
    const int64_t a = t.shape[2];
    const int64_t shape[3] = {s_.tokens, s_.groups, s_.in / 128};
    const int64_t stride[3] = {1, s_.in / 128 * a, a};
    std::copy_n(shape, 3, t.shape);
    std::copy_n(stride, 3, t.stride);
    return t;
  }
  static void fill_values(const TensorBuffer& t, std::mt19937_64& random) {
    const size_t count = t.view().shape[0] == 0 ? 0 : static_cast<size_t>(t.view().shape[0] * t.view().stride[0]);
    for (size_t i = 0; i < count; ++i) {
      if (t.view().dtype == MEGAMLA_BF16) {
        // Any sign and mantissa, exponents of -4 to 3.
        t.as<Bf16>()[i].bits = static_cast<uint16_t>((random() & 0x807fU) + ((123U + random() % 8U) << 7U));
      } else {
        const auto code = static_cast<uint8_t>(random());
        t.as<uint8_t>()[i] = (code & 0x7fU) == 0x7fU ? static_cast<uint8_t>(code & 0x87U) : code;
      }
    }
  }
  static void fill_scales(TensorBuffer& t, std::mt19937_64& random) {
    std::vector<uint8_t> bytes = t.values<uint8_t>();
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(116 + random() % 8);
    t.assign(bytes);
  }

 public:
  TensorBuffer x, pair_scale, flat_scale, weight, weight_scale, y, y_scale;
  Params params;
};

// The rules: what fp32 accumulation loses (contract section 16), then the rounding of the output.
void compare(const Shape& s, const Problem& problem, const char* device, int64_t row_step = 1) {
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t g = 0; g < s.groups; ++g) {
      for (int64_t n = t % row_step; n < s.out; n += row_step) {
        double sum = 0;
        double magnitude = 0;
        problem.expected(t, g, n, &sum, &magnitude);
        double bound = 2e-6 * magnitude;
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
void check_scales(const Shape& s, const Problem& problem) {
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

void check(const Shape& s, uint64_t seed, int64_t row_step = 1) {
  SCOPED_TRACE(name_of(s));
  Problem problem(s, seed);
  for (const megamla_device device : kDevices) {
    ASSERT_NO_FATAL_FAILURE(problem.run(device));
    ASSERT_NO_FATAL_FAILURE(compare(s, problem, device_name(device), row_step));
    if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      ASSERT_NO_FATAL_FAILURE(check_scales(s, problem));
    }
  }
}

constexpr megamla_linear_input kInputs[] = {MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_IN_FP8_PAIR,
                                            MEGAMLA_LINEAR_IN_MXFP8};
constexpr megamla_linear_weight kWeights[] = {MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32,
                                              MEGAMLA_LINEAR_WEIGHT_ROW_32};
constexpr megamla_linear_output kOutputs[] = {MEGAMLA_LINEAR_OUT_BF16, MEGAMLA_LINEAR_OUT_F32,
                                              MEGAMLA_LINEAR_OUT_MXFP8};

TEST(BlockScaledLinear, EveryKindOfInputWeightAndOutput) {
  uint64_t seed = 1;
  for (const auto input : kInputs) {
    for (const auto weight : kWeights) {
      for (const auto output : kOutputs) {
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

// Every CPU implementation, also those that this machine does not choose by itself.
TEST(BlockScaledLinear, EveryCpuImplementation) {
  struct Implementation {
    const char* name;
    Status (*supports)(const Params&);
    int64_t (*workspace)(const megamla_limits&);
    Status (*run)(const Params&, const megamla_exec&);
  };
  const auto always = [](const Params&) { return Status(); };
  const Implementation implementations[] = {
      {"avx512_bf16", cpu::block_scaled_linear_dots_supports, cpu::block_scaled_linear_bf16_workspace,
       cpu::block_scaled_linear_dots},
      {"onednn_bf16", cpu::block_scaled_linear_bf16_supports, cpu::block_scaled_linear_bf16_workspace,
       cpu::block_scaled_linear_bf16},
      {"onednn_f32", always, cpu::block_scaled_linear_f32_workspace, cpu::block_scaled_linear_f32},
  };
  uint64_t seed = 50;
  for (const auto input : kInputs) {
    for (const auto weight : kWeights) {
      for (const int64_t tokens : {7, 30}) {
        const Shape s{tokens, input == MEGAMLA_LINEAR_IN_MXFP8 ? 1 : 2, 128, 96, input, weight, MEGAMLA_LINEAR_OUT_F32,
                      8};
        Problem problem(s, ++seed);
        for (const Implementation& implementation : implementations) {
          SCOPED_TRACE(implementation.name + (", " + name_of(s)));
          if (!implementation.supports(problem.params).ok()) continue;
          problem.y.refill();
          Workspace workspace(implementation.workspace(problem.limits(2)));
          megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU, 2);
          workspace.attach(exec);
          const Status status = implementation.run(problem.params, exec);
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(workspace.guards_intact());
          EXPECT_TRUE(problem.y.guards_intact());
          ASSERT_NO_FATAL_FAILURE(compare(s, problem, implementation.name));
        }
      }
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
    const Shape s{
        tokens, 2, 512, 320, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32};
    Problem problem(s, 9);
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
  const Shape s{11, 1, 288, 96, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_F32};
  Problem problem(s, 4);
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
    const Shape s{
        tokens, 1, 128, 64, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_BF16};
    Problem problem(s, 8);
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
    const Shape s{tokens, 1, 128, 64, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_F32};
    Problem problem(s, 3);
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
    const Shape s{tokens, 2, 64, 64, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_OUT_F32};
    Problem problem(s, 6);
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
  const Shape s{5, 1, 64, 32, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16};
  Problem problem(s, 2);
  problem.params.x = host_tensor(problem.x.view().data, MEGAMLA_BF16, {5, 64});
  problem.params.weight = host_tensor(problem.weight.view().data, MEGAMLA_F8_E4M3, {32, 64});
  problem.params.weight_scale = host_tensor(problem.weight_scale.view().data, MEGAMLA_F8_E8M0, {1, 2});
  problem.params.y = host_tensor(problem.y.view().data, MEGAMLA_BF16, {5, 32});
  for (const megamla_device device : kDevices) {
    ASSERT_NO_FATAL_FAILURE(problem.run(device));
    ASSERT_NO_FATAL_FAILURE(compare(s, problem, device_name(device)));
  }
}

TEST(BlockScaledLinear, WorkspaceTooSmallIsRefused) {
  const Shape s{5, 1, 64, 32, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16};
  Problem problem(s, 2);
  const std::vector<uint8_t> before = problem.y.bytes();
  Workspace workspace(256);
  megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU, 2);
  workspace.attach(exec);
  EXPECT_EQ(megamla_block_scaled_linear(&problem.params, &exec), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(megamla_last_error()).find("exec.workspace: expected at least"), std::string::npos);
  EXPECT_TRUE(problem.y.bytes() == before);
}

// What a smaller call needs never exceeds the size for larger limits.
TEST(BlockScaledLinear, WorkspaceCoversEveryCallWithinTheLimits) {
  const auto bytes = [](int64_t tokens, int64_t in, int64_t out) {
    const Shape s{tokens, 1, in, out, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_OUT_BF16};
    megamla_limits limits = MEGAMLA_LIMITS_INIT;
    limits.tokens = s.tokens;
    limits.groups = 1;
    limits.in_features = s.in;
    limits.out_features = s.out;
    limits.num_threads = 2;
    int64_t size = -1;
    EXPECT_EQ(megamla_block_scaled_linear_workspace_size(&limits, MEGAMLA_DEVICE_CPU, &size), MEGAMLA_OK);
    return size;
  };
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto tokens = static_cast<int64_t>(1 + random() % 5000);
    const auto in = static_cast<int64_t>(32 * (1 + random() % 256));
    const auto out = static_cast<int64_t>(1 + random() % 40000);
    EXPECT_LE(bytes(static_cast<int64_t>(random() % static_cast<uint64_t>(tokens)), in, out), bytes(tokens, in, out));
    EXPECT_LE(bytes(tokens, in, out), bytes(tokens + 1, in + 32, out + 1));
  }
}

TEST(BlockScaledLinear, BadArgumentsAreRefused) {
  const Shape s{6, 2, 256, 64, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_BF16};
  Problem problem(s, 2);
  BadInput<Params> bad("block_scaled_linear", megamla_block_scaled_linear, problem.params,
                       {&problem.y, &problem.y_scale}, problem.workspace_bytes(MEGAMLA_DEVICE_CPU, 0));
  bad.tensor("x", &Params::x, true, 2);
  bad.tensor("x_scale", &Params::x_scale, true, 3);
  bad.tensor("weight", &Params::weight, true, 0);
  bad.tensor("weight_scale", &Params::weight_scale, true, 0);
  bad.tensor("y", &Params::y, true, 2);
  bad.output("y", &Params::y, {&Params::x, &Params::x_scale, &Params::weight, &Params::weight_scale});
  for (const int32_t value : {-1, 3}) {
    bad.expect("input", "an unknown input", [=](Params& p) { p.input = value; });
    bad.expect("weight_kind", "an unknown weight", [=](Params& p) { p.weight_kind = value; });
    bad.expect("output", "an unknown output", [=](Params& p) { p.output = value; });
  }
  bad.expect("x", "FP8 as BF16", [](Params& p) { p.input = MEGAMLA_LINEAR_IN_BF16; });
  bad.expect("x", "one token less", [](Params& p) { p.x.shape[0] = 5; });
  bad.expect("x_scale", "a step of two tokens", [](Params& p) { p.x_scale.stride[0] = 2; });
  bad.expect("x_scale", "pad columns missing", [](Params& p) { p.x_scale.stride[2] = 6; });
  bad.expect("x_scale", "groups apart", [](Params& p) { p.x_scale.stride[1] += 4; });
  bad.expect("weight", "groups for MXFP8", [](Params& p) { p.input = MEGAMLA_LINEAR_IN_MXFP8; });
  bad.expect("weight", "FP8 as BF16", [](Params& p) { p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BF16; });
  bad.expect("weight_scale", "rows as blocks", [](Params& p) { p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32; });
  bad.expect("y", "BF16 as F32", [](Params& p) { p.output = MEGAMLA_LINEAR_OUT_F32; });
  bad.expect("y", "BF16 as MXFP8", [](Params& p) { p.output = MEGAMLA_LINEAR_OUT_MXFP8; });
  bad.expect("y_scale", "scales of BF16", [&](Params& p) { p.y_scale = problem.y_scale; });
  bad.expect("weight", "no group", [](Params& p) { p.weight.shape[0] = 0; });
}

TEST(BlockScaledLinear, BadMxfp8ArgumentsAreRefused) {
  const Shape s{6, 1, 64, 128, MEGAMLA_LINEAR_IN_MXFP8, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_MXFP8};
  Problem problem(s, 2);
  BadInput<Params> bad("block_scaled_linear", megamla_block_scaled_linear, problem.params,
                       {&problem.y, &problem.y_scale}, problem.workspace_bytes(MEGAMLA_DEVICE_CPU, 0));
  bad.tensor("x", &Params::x, true, 0);
  bad.tensor("x_scale", &Params::x_scale, true, 0);
  bad.tensor("y", &Params::y, true, 0);
  bad.tensor("y_scale", &Params::y_scale, true, 0);
  bad.output("y", &Params::y, {&Params::x, &Params::x_scale, &Params::weight, &Params::weight_scale});
  bad.output("y_scale", &Params::y_scale, {&Params::x, &Params::x_scale, &Params::weight, &Params::weight_scale});
  bad.expect("x_scale", "scales without padding", [](Params& p) { p.x_scale.shape[0] = 6 * 2; });
  bad.expect("y_scale", "scales without padding", [](Params& p) { p.y_scale.shape[0] = 6 * 4; });
  bad.expect("groups * out", "64 rows", [](Params& p) {
    p.weight.shape[1] = 64;
    p.weight_scale.shape[1] = 2;
  });
  bad.expect("weight rows", "blocks of 32 rows", [](Params& p) { p.weight.shape[1] = 100; });
  bad.expect("weight columns", "48 columns", [](Params& p) { p.weight.shape[2] = p.x.shape[1] = 48; });
  bad.expect("x_scale", "scales of BF16", [](Params& p) {
    p.input = MEGAMLA_LINEAR_IN_BF16;
    p.x.dtype = MEGAMLA_BF16;
  });
}

}  // namespace
}  // namespace megamla::test
