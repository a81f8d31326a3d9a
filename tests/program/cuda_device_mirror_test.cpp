// The tests' own way to a GPU and back (tests/support/device_mirror.hpp), where buffers touch each other.
#include <gtest/gtest.h>

#include <vector>

#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "megamla/megamla.hpp"
#include "support/every_implementation.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kWidth = 128;

// A row and its norm, side by side in memory as two buffers; the norm is `first` or not.
void expect_norm_beside_row(const ops::Implementation<megamla_rms_norm_params>& implementation, bool first) {
  std::vector<format::Bf16> memory(2 * kWidth, format::to_bf16(2));
  const HostRegion lower(memory.data(), kWidth * sizeof(format::Bf16));
  const HostRegion upper(memory.data() + kWidth, kWidth * sizeof(format::Bf16));
  TensorBuffer weight(MEGAMLA_BF16, {kWidth});
  weight.fill(format::to_bf16(1));
  format::Bf16* norm = memory.data() + (first ? 0 : kWidth);
  format::Bf16* row = memory.data() + (first ? kWidth : 0);
  api::RmsNorm p;
  p.x = host_tensor(row, MEGAMLA_BF16, {1, kWidth});
  p.weight = weight;
  p.y = host_tensor(norm, MEGAMLA_BF16, {1, kWidth});
  expect_ok(run_implementation<megamla_rms_norm_params>(implementation, p));
  for (int64_t i = 0; i < kWidth; ++i) {
    ASSERT_EQ(format::to_float(norm[i]), 1) << i;
    ASSERT_EQ(format::to_float(row[i]), 2) << i;
  }
}

TEST(CudaDeviceMirror, BuffersThatTouchStayApart) {
  if (const std::string missing = gpu_missing(); !missing.empty()) GTEST_SKIP() << missing;
  for (const auto& implementation : ops::op_of(static_cast<const megamla_rms_norm_params*>(nullptr)).implementations) {
    if (implementation.device != MEGAMLA_DEVICE_CUDA) continue;
    expect_norm_beside_row(implementation, false);
    expect_norm_beside_row(implementation, true);
  }
}

}  // namespace
}  // namespace megamla::test
