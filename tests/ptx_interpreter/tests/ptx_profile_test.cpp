// What is counted of a kernel's accesses.
#include <gtest/gtest.h>

#include "ptx_interpreter/profile.hpp"

namespace ptx::test {
namespace {

// Lane i at i * step + first.
Counters shared(uint64_t step, uint64_t bytes, Mask lanes = kAllLanes) {
  uint64_t at[kLanes];
  for (uint64_t i = 0; i < kLanes; ++i) at[i] = 1024 + i * step;
  Counters counters;
  count_shared(counters, at, lanes, bytes);
  return counters;
}
Counters global(uint64_t first, uint64_t step, uint64_t bytes) {
  uint64_t at[kLanes];
  for (uint64_t i = 0; i < kLanes; ++i) at[i] = first + i * step;
  Counters counters;
  count_global(counters, at, kAllLanes, bytes);
  return counters;
}

TEST(PtxProfile, PassesOverSharedMemory) {
  EXPECT_EQ(shared(4, 4).shared_passes, 1U);
  EXPECT_EQ(shared(0, 4).shared_passes, 1U) << "one word for all";
  EXPECT_EQ(shared(8, 4).shared_passes, 2U);
  EXPECT_EQ(shared(128, 4).shared_passes, 32U);
  EXPECT_EQ(shared(132, 4).shared_passes, 1U);
  EXPECT_EQ(shared(16, 16).shared_passes, 4U);
  EXPECT_EQ(shared(16, 16).shared_least, 4U);
  EXPECT_EQ(shared(128, 16).shared_passes, 32U);
  EXPECT_EQ(shared(128, 4, 0x101).shared_passes, 2U);
}

TEST(PtxProfile, SectorsOfGlobalMemory) {
  EXPECT_EQ(global(4096, 4, 4).global_sectors, 4U);
  EXPECT_EQ(global(4096, 4, 4).global_least, 4U);
  EXPECT_EQ(global(4100, 4, 4).global_sectors, 5U);
  EXPECT_EQ(global(4096, 64, 4).global_sectors, 32U);
  EXPECT_EQ(global(4096, 16, 16).global_sectors, 16U);
}

}  // namespace
}  // namespace ptx::test
