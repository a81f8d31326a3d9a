// What block_scaled_linear refuses, and that it refuses before anything is written; the size of its workspace.
#include <gtest/gtest.h>

#include "support/bad_input.hpp"
#include "support/linear_problem.hpp"

namespace megamla::test {
namespace {

using Params = megamla_block_scaled_linear_params;

TEST(BlockScaledLinearArguments, WorkspaceTooSmallIsRefused) {
  const LinearShape s{5, 1, 64, 32, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_BF16};
  LinearProblem problem(s, 2);
  const std::vector<uint8_t> before = problem.y.bytes();
  Workspace workspace(256);
  megamla_exec exec = exec_on(MEGAMLA_DEVICE_CPU, 2);
  workspace.attach(exec);
  EXPECT_EQ(megamla_block_scaled_linear(&problem.params, &exec), MEGAMLA_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(megamla_last_error()).find("exec.workspace: expected at least"), std::string::npos);
  EXPECT_TRUE(problem.y.bytes() == before);
}

// What a smaller call needs never exceeds the size for larger limits.
TEST(BlockScaledLinearArguments, WorkspaceCoversEveryCallWithinTheLimits) {
  const auto bytes = [](int64_t tokens, int64_t in, int64_t out) {
    const LinearShape s{
        tokens, 1, in, out, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_OUT_BF16};
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

TEST(BlockScaledLinearArguments, BadArgumentsAreRefused) {
  const LinearShape s{6, 2, 256, 64, MEGAMLA_LINEAR_IN_FP8_PAIR, MEGAMLA_LINEAR_WEIGHT_ROW_32, MEGAMLA_LINEAR_OUT_BF16};
  LinearProblem problem(s, 2);
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

TEST(BlockScaledLinearArguments, BadMxfp8ArgumentsAreRefused) {
  const LinearShape s{6, 1, 64, 128, MEGAMLA_LINEAR_IN_MXFP8, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, MEGAMLA_LINEAR_OUT_MXFP8};
  LinearProblem problem(s, 2);
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
