// oneDNN compiles code for every shape: however many numbers of tokens a projection meets, it makes few of them.
#include <gtest/gtest.h>

#include <vector>

#include "core/tensor.hpp"
#include "cpu/block_scaled_linear.hpp"
#include "cpu/gemm.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla {
namespace {

TEST(GemmShapes, AreFewWhateverTheNumberOfTokens) {
  constexpr int64_t kIn = 64;
  constexpr int64_t kOut = 96;  // a whole panel of rows and a part of one
  constexpr int64_t kMostTokens = 600;
  std::vector<uint16_t> x(kMostTokens * kIn, 0x3f80);  // 1
  std::vector<uint8_t> weight(kOut * kIn, 0x38);       // 1
  std::vector<uint8_t> scale(kOut * kIn / 32, 127);    // 1
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  p.weight_kind = MEGAMLA_LINEAR_WEIGHT_ROW_32;
  p.weight = host_tensor(weight.data(), MEGAMLA_F8_E4M3, {kOut, kIn});
  p.weight_scale = host_tensor(scale.data(), MEGAMLA_F8_E8M0, {kOut, kIn / 32});
  p.output = MEGAMLA_LINEAR_OUT_F32;
  p.batch_invariant = 1;
  megamla_limits limits{};
  limits.tokens = kMostTokens;
  limits.groups = 1;
  limits.in_features = kIn;
  limits.out_features = kOut;
  limits.num_threads = 1;
  std::vector<char> workspace(static_cast<size_t>(cpu::block_scaled_linear_f32_workspace(limits)));
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.num_threads = 1;
  exec.workspace = workspace.data();
  exec.workspace_bytes = static_cast<int64_t>(workspace.size());
  const int64_t before = cpu::cached_gemms();
  for (int64_t tokens = 1; tokens <= kMostTokens; ++tokens) {
    std::vector<float> y(static_cast<size_t>(tokens * kOut), -1);
    p.x = host_tensor(x.data(), MEGAMLA_BF16, {tokens, kIn});
    p.y = host_tensor(y.data(), MEGAMLA_F32, {tokens, kOut});
    ASSERT_TRUE(cpu::block_scaled_linear_f32(p, exec).ok());
    for (const float value : y) ASSERT_EQ(value, kIn) << tokens << " tokens";
  }
  EXPECT_LE(cpu::cached_gemms() - before, 2 * 16) << "two panels, tiles of 16 to 256 tokens";
}

}  // namespace
}  // namespace megamla
