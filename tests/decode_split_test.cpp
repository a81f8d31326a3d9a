// How decode rows are spread over a GPU's SMs: everything is attended once, nothing waits that could be resident.
#include "plan/decode_split.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace megamla::plan {
namespace {

// What an H200 reports: 132 SMs; clusters of n blocks that are resident at once.
constexpr DecodeDevice kDevice{132, {0, 0, 66, 42, 30, 24, 20, 16, 15, 8, 8, 8, 8, 8, 8, 7, 7}};

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
  EXPECT_EQ(decode_split({1, 10, false}, kDevice).cluster, 10);
  EXPECT_EQ(decode_split({8, 10, false}, kDevice).cluster, 10);
  EXPECT_EQ(decode_split({9, 10, false}, kDevice).cluster, 5);  // two tiles each, as with 6, 7 and 8
  EXPECT_EQ(decode_split({1, 8, false}, kDevice).cluster, 8);
  EXPECT_EQ(decode_split({1, 2, false}, kDevice).cluster, 1);  // a merge costs more
  EXPECT_EQ(decode_split({1, 0, false}, kDevice).cluster, 1);
}

TEST(DecodeSplit, SharedRowsFollowWholeWaves) {
  for (int64_t items = 67; items <= 2000; ++items) {
    SCOPED_TRACE(items);
    const DecodeSplit split = decode_split({items, 10, false}, kDevice);
    EXPECT_LE(split.blocks, kDevice.blocks);
    if (split.cluster == 1) {
      EXPECT_EQ(split.whole_items, items);
      continue;
    }
    EXPECT_EQ(split.blocks % split.cluster, 0);
    EXPECT_LE(split.blocks / split.cluster, kDevice.clusters[static_cast<size_t>(split.cluster)]);
    EXPECT_EQ(split.whole_items % split.blocks, 0);
    EXPECT_GT(items, split.whole_items);
    EXPECT_LE(items - split.whole_items, split.blocks / split.cluster);
  }
}

TEST(DecodeSplit, OneRowMoreThanAWave) {
  EXPECT_EQ(decode_split({132, 10, false}, kDevice).cluster, 1);
  const DecodeSplit split = decode_split({133, 10, false}, kDevice);
  EXPECT_EQ(split.cluster, 5);
  EXPECT_EQ(split.blocks, 120);
  EXPECT_EQ(split.whole_items, 120);
  EXPECT_EQ(decode_split({198, 10, false}, kDevice).cluster, 2);
  EXPECT_EQ(decode_split({199, 10, false}, kDevice).cluster, 1);
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
  EXPECT_EQ(decode_split({79, 10, false}, small).whole_items, 70);  // fourteen clusters of five
}

// The kernel for few heads on an H200: up to 4 blocks an SM, 19 KB a stage.
constexpr ShareDevice kShareDevice{132, 233472, 1024, 4, 10000, 18944, 4};

TEST(DecodeShares, FewRowsAreCutSmallManyAreLeftWhole) {
  EXPECT_EQ(decode_shares({1, 640, false}, kShareDevice).blocks, 8);
  EXPECT_EQ(decode_shares({8, 640, false}, kShareDevice).blocks, 8);
  EXPECT_EQ(decode_shares({1024, 640, false}, kShareDevice).blocks, 1);
  EXPECT_EQ(decode_shares({131072, 640, false}, kShareDevice).blocks, 1);
  int before = kMostClusterBlocks;
  for (const int64_t items : {1, 16, 32, 64, 128, 512, 4096}) {
    const int now = decode_shares({items, 640, false}, kShareDevice).blocks;
    EXPECT_LE(now, before) << items;
    EXPECT_GE(now, 1) << items;
    before = now;
  }
}

TEST(DecodeShares, ABlockHasKeysToAttendTo) {
  EXPECT_EQ(decode_shares({1, 0, false}, kShareDevice).blocks, 1);
  EXPECT_EQ(decode_shares({1, 127, false}, kShareDevice).blocks, 1);
  EXPECT_EQ(decode_shares({1, 130, false}, kShareDevice).blocks, 2);
}

TEST(DecodeShares, BatchInvariantRowsAreAlwaysCutAlike) {
  const int blocks = decode_shares({1, 640, true}, kShareDevice).blocks;
  for (const int64_t items : {2, 66, 133, 4096}) {
    for (const int64_t keys : {0, 1, 640, 5000}) {
      EXPECT_EQ(decode_shares({items, keys, true}, kShareDevice).blocks, blocks);
    }
  }
}

TEST(DecodeShares, BlocksThatShareAnSmShareItsMemory) {
  for (const int64_t items : {1, 64, 133, 200, 264, 1024, 131072}) {
    SCOPED_TRACE(items);
    const DecodeShares shares = decode_shares({items, 640, false}, kShareDevice);
    EXPECT_GE(shares.stages, 2);
    EXPECT_LE(shares.stages, kShareDevice.most_stages);
    const int64_t wanted = (items * shares.blocks + kShareDevice.sms - 1) / kShareDevice.sms;
    const int64_t resident = std::min<int64_t>(wanted, kShareDevice.blocks_per_sm);
    const int64_t block =
        kShareDevice.reserved_bytes + kShareDevice.fixed_bytes + int64_t{shares.stages} * kShareDevice.stage_bytes;
    EXPECT_LE(resident * block, kShareDevice.shared_bytes);
  }
  EXPECT_EQ(decode_shares({1, 640, false}, kShareDevice).stages, 4);
  EXPECT_EQ(decode_shares({1024, 640, false}, kShareDevice).stages, 2);
}

}  // namespace
}  // namespace megamla::plan
