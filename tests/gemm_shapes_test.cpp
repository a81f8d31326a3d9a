// oneDNN compiles code for every shape: however many numbers of tokens a projection meets, it makes few of them.
#include <gtest/gtest.h>

#include <vector>

#include "core/tensor.hpp"
#include "cpu/block_scaled_linear.hpp"
#include "cpu/gemm.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla {
namespace {

constexpr int64_t kIn = 64;
constexpr int64_t kOut = 96;  // a whole panel of rows and a part of one
constexpr int64_t kMostTokens = 600;

// Multiplies 1 to kMostTokens rows of ones, `stride` elements apart, with ones; how many kinds of product that took.
template <auto Linear, auto Workspace>
int64_t products(bool batch_invariant, int64_t stride) {
  std::vector<uint16_t> x(static_cast<size_t>(kMostTokens * stride), 0x3f80);  // 1
  std::vector<uint8_t> weight(kOut * kIn, 0x38);                               // 1
  std::vector<uint8_t> scale(kOut * kIn / 32, 127);                            // 1
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  p.weight_kind = MEGAMLA_LINEAR_WEIGHT_ROW_32;
  p.weight = host_tensor(weight.data(), MEGAMLA_F8_E4M3, {kOut, kIn});
  p.weight_scale = host_tensor(scale.data(), MEGAMLA_F8_E8M0, {kOut, kIn / 32});
  p.output = MEGAMLA_LINEAR_OUT_F32;
  p.batch_invariant = batch_invariant ? 1 : 0;
  megamla_limits limits{};
  limits.tokens = kMostTokens;
  limits.groups = 1;
  limits.in_features = kIn;
  limits.out_features = kOut;
  limits.num_threads = 1;
  std::vector<char> workspace(static_cast<size_t>(Workspace(limits)));
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.num_threads = 1;
  exec.workspace = workspace.data();
  exec.workspace_bytes = static_cast<int64_t>(workspace.size());
  const int64_t before = cpu::cached_gemms();
  for (int64_t tokens = 1; tokens <= kMostTokens; ++tokens) {
    std::vector<float> y(static_cast<size_t>(tokens * kOut), -1);
    p.x = host_tensor(x.data(), MEGAMLA_BF16, {tokens, kIn});
    p.x.stride[0] = stride;
    p.y = host_tensor(y.data(), MEGAMLA_F32, {tokens, kOut});
    EXPECT_TRUE(Linear(p, exec).ok());
    for (const float value : y) EXPECT_EQ(value, kIn) << tokens << " tokens";
    if (testing::Test::HasFailure()) break;
  }
  return cpu::cached_gemms() - before;
}

TEST(GemmShapes, AreFewWhateverTheNumberOfTokens) {
  const auto f32 = products<cpu::block_scaled_linear_f32, cpu::block_scaled_linear_f32_workspace>;
  EXPECT_LE(f32(false, kIn), 2 * 16) << "two panels, tiles of 16 to 256 tokens";
}

// Two shapes of product may add up in two orders; that a batch-invariant row has the same bits in any company must not
// hang on which of them the machine's oneDNN treats alike.
TEST(GemmShapes, AreTheSameForAnyNumberOfBatchInvariantTokens) {
  const auto f32 = products<cpu::block_scaled_linear_f32, cpu::block_scaled_linear_f32_workspace>;
  EXPECT_LE(f32(true, kIn), 2) << "one for each panel";
  EXPECT_EQ(f32(true, kIn + 32), 0) << "whatever the stride of x";
  if (cpu::native_gemm_type() != cpu::GemmType::kBf16) GTEST_SKIP() << "no bf16 on this machine";
  const auto bf16 = products<cpu::block_scaled_linear_bf16, cpu::block_scaled_linear_bf16_workspace>;
  EXPECT_LE(bf16(true, kIn), 2);
  EXPECT_EQ(bf16(true, kIn + 32), 0);
}

}  // namespace
}  // namespace megamla
