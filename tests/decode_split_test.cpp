// How decode rows are spread over a GPU's SMs: everything is attended once, nothing waits that could be resident.
#include "plan/decode_split.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace megamla::plan {
namespace {

// What an H200 reports: 132 SMs; clusters of n blocks that are resident at once.
constexpr DecodeDevice kDevice{132, {0, 0, 66, 42, 30, 24, 20, 16, 15}};

TEST(DecodeSplit, FewRowsAreSharedByResidentClusters) {
  for (int64_t items = 1; items <= 66; ++items) {
    const DecodeSplit split = decode_split({items, 10, false}, kDevice);
    SCOPED_TRACE(items);
    EXPECT_GT(split.cluster, 1);
    EXPECT_LE(items, kDevice.clusters[static_cast<size_t>(split.cluster)]);
    EXPECT_EQ(split.blocks, items * split.cluster);
    EXPECT_EQ(split.whole_items, 0);
  }
}

TEST(DecodeSplit, AClusterIsNoLargerThanItHelps) {
  EXPECT_EQ(decode_split({1, 10, false}, kDevice).cluster, 5);  // two tiles each, as with 6, 7 and 8
  EXPECT_EQ(decode_split({1, 8, false}, kDevice).cluster, 8);
  EXPECT_EQ(decode_split({1, 1, false}, kDevice).cluster, 1);
  EXPECT_EQ(decode_split({1, 0, false}, kDevice).cluster, 1);
}

TEST(DecodeSplit, TheLastWaveIsSharedWhereItFits) {
  for (const int64_t items : {67, 132, 133, 198, 199, 264, 330, 1024, 131072}) {
    SCOPED_TRACE(items);
    const DecodeSplit split = decode_split({items, 10, false}, kDevice);
    const int64_t rest = items % kDevice.blocks;
    const bool shared = items > kDevice.blocks && rest > 0 && rest <= 66;
    EXPECT_EQ(split.cluster, shared ? 2 : 1);
    EXPECT_EQ(split.whole_items, shared ? items - rest : items);
    EXPECT_EQ(split.blocks, std::min<int64_t>(items, kDevice.blocks));
    EXPECT_LE((items - split.whole_items) * split.cluster, split.blocks);
  }
}

TEST(DecodeSplit, BatchInvariantRowsAreNeverShared) {
  for (const int64_t items : {1, 5, 66, 133, 1024}) {
    const DecodeSplit split = decode_split({items, 10, true}, kDevice);
    EXPECT_EQ(split.cluster, 1);
    EXPECT_EQ(split.whole_items, items);
  }
}

// 78 SMs: the plan follows the device.
TEST(DecodeSplit, OtherDevices) {
  const DecodeDevice small{78, {0, 0, 39, 24, 18, 14, 12, 10, 9}};
  EXPECT_EQ(decode_split({1024, 10, false}, small).blocks, 78);
  EXPECT_EQ(decode_split({79, 10, false}, small).whole_items, 78);
}

}  // namespace
}  // namespace megamla::plan
