// How decode rows are spread over a GPU's SMs: everything is attended once, nothing waits that could be resident.
#include "plan/decode_split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace megamla::plan {
namespace {

// What an H200 reports: 132 SMs; clusters of n blocks that are resident at once.
constexpr DecodeDevice kDevice{132, {0, 0, 66, 42, 30, 24, 20, 16, 15, 8, 8, 8, 8, 8, 8, 7, 7}};

DecodeStep step_of(int64_t items, int64_t key_tiles, bool ragged = false, bool invariant = false, int places = 10) {
  return {items, key_tiles, ragged, invariant, places};
}

TEST(DecodeSplit, FewRowsAreSharedByResidentClusters) {
  for (const bool ragged : {false, true}) {
    for (int64_t items = 1; items <= 66; ++items) {
      const DecodeSplit split = decode_split(step_of(items, 10, ragged), kDevice);
      SCOPED_TRACE(items);
      EXPECT_EQ(split.spread, Spread::kRows);
      EXPECT_GT(split.cluster, 1);
      EXPECT_LE(items, kDevice.clusters[static_cast<size_t>(split.cluster)]);
      EXPECT_EQ(split.blocks, items * split.cluster);
      EXPECT_EQ(split.whole_items, 0);
    }
  }
}

TEST(DecodeSplit, AClusterIsNoLargerThanItHelps) {
  EXPECT_EQ(decode_split(step_of(1, 10), kDevice).cluster, 10);
  EXPECT_EQ(decode_split(step_of(8, 10), kDevice).cluster, 10);
  EXPECT_EQ(decode_split(step_of(9, 10), kDevice).cluster, 5);  // two tiles each, as with 6, 7 and 8
  EXPECT_EQ(decode_split(step_of(1, 8), kDevice).cluster, 8);
  EXPECT_EQ(decode_split(step_of(1, 2), kDevice).cluster, 1);  // a merge costs more
  EXPECT_EQ(decode_split(step_of(1, 0), kDevice).cluster, 1);
}

TEST(DecodeSplit, SharedRowsFollowWholeWaves) {
  for (int64_t items = 67; items <= 2000; ++items) {
    SCOPED_TRACE(items);
    const DecodeSplit split = decode_split(step_of(items, 10), kDevice);
    EXPECT_LE(split.blocks, kDevice.blocks);
    if (split.spread == Spread::kKeys) continue;
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

TEST(DecodeSplit, FullWavesAreWholeRows) {
  for (const int64_t items : {128, 132, 256, 264, 1056}) {
    const DecodeSplit split = decode_split(step_of(items, 10), kDevice);
    EXPECT_EQ(split.spread, Spread::kRows) << items;
    EXPECT_EQ(split.whole_items, items);
  }
}

// A wave's first rows go on where the last wave's end, if rows are so long that parts of them pay.
TEST(DecodeSplit, LongRowsBeyondAWaveAreDealtOutByKeys) {
  for (const int64_t items : {67, 80, 84, 200}) {
    EXPECT_EQ(decode_split(step_of(items, 10), kDevice).spread, Spread::kRows) << items;
    const DecodeSplit split = decode_split(step_of(items, 40), kDevice);
    EXPECT_EQ(split.spread, Spread::kKeys) << items;
    EXPECT_EQ(split.blocks, 132);
  }
}

TEST(DecodeSplit, RowsOfUnknownLengthsAreDealtOutByKeys) {
  for (const int64_t items : {67, 128, 132, 264, 1024}) {
    EXPECT_EQ(decode_split(step_of(items, 10, true), kDevice).spread, Spread::kKeys) << items;
  }
}

TEST(DecodeSplit, BatchInvariantRowsAreCutByTheirKeysAlone) {
  for (const int64_t key_tiles : {0, 1, 3, 4, 7, 10, 18, 64}) {
    const int segments = decode_split(step_of(1, key_tiles, false, true), kDevice).segments;
    EXPECT_LE(segments, kMostSegments);
    for (const int places : {5, 10}) {
      for (int64_t items = 1; items <= 2000; ++items) {
        const DecodeSplit split = decode_split(step_of(items, key_tiles, false, true, places), kDevice);
        ASSERT_EQ(split.segments, segments) << items;
        if (split.cluster == 1) {
          EXPECT_LE(split.blocks, kDevice.blocks);
        }
        if (segments == 1) {
          EXPECT_EQ(split.cluster, 1);
          EXPECT_EQ(split.whole_items, items);
          continue;
        }
        EXPECT_GE(int64_t{segments} * split.segment_tiles, key_tiles);
        if (split.spread == Spread::kRows) {
          EXPECT_EQ(split.cluster, segments);
          EXPECT_EQ(split.blocks, items * segments);
          EXPECT_LE(items, 2 * kDevice.clusters[static_cast<size_t>(segments)]);
          continue;
        }
        EXPECT_GE(split.blocks * split.block_segments, items * segments);
        EXPECT_LE(split.blocks, items * kBlocksOfARow);
      }
    }
  }
}

// No two parts that a block has at once lie at the same place.
TEST(DecodeSplit, PartsHavePlacesOfTheirOwn) {
  for (const int places : {5, 10}) {
    for (int64_t items = 49; items <= 700; ++items) {
      const DecodeSplit split = decode_split(step_of(items, 10, false, true, places), kDevice);
      ASSERT_EQ(split.spread, Spread::kSegments);
      const int n = split.segments;
      for (int64_t block = 0; block < split.blocks; ++block) {
        std::vector<int64_t> held(static_cast<size_t>(places), -1);  // the row at each place
        const int64_t first = block * split.block_segments;
        const int64_t end = std::min<int64_t>(first + split.block_segments, items * n);
        for (int64_t at = first; at < end; ++at) {
          const int64_t row = at / n;
          const auto segment = static_cast<int>(at % n);
          const bool begun = row * n >= first;
          const int place = begun ? places - n + segment : segment - 1;
          ASSERT_GE(place, 0);
          ASSERT_LT(place, places);
          const int64_t before = std::exchange(held[static_cast<size_t>(place)], row);
          // A row that was there is merged: all of it was this block's.
          ASSERT_TRUE(before < 0 || (before * n >= first && before < row)) << items << " " << block;
        }
      }
    }
  }
}

// 78 SMs: the plan follows the device.
TEST(DecodeSplit, OtherDevices) {
  const DecodeDevice small{78, {0, 0, 39, 24, 18, 14, 12, 10, 9}};
  EXPECT_EQ(decode_split(step_of(1024, 10), small).blocks, 78);
  EXPECT_EQ(decode_split(step_of(40, 40), small).spread, Spread::kKeys);
  EXPECT_EQ(decode_split(step_of(78, 10), small).spread, Spread::kRows);
}

// The kernel for few heads on an H200, 8 heads.
constexpr ShareDevice kShareDevice{132, 2, {0, 0, 66, 40, 30, 22, 20, 16, 15}};

TEST(DecodeShares, FewRowsAreSharedByWhatIsResident) {
  EXPECT_EQ(decode_shares({1, 40, false}, kShareDevice).blocks, 5);
  EXPECT_EQ(decode_shares({22, 40, false}, kShareDevice).blocks, 5);
  EXPECT_EQ(decode_shares({30, 40, false}, kShareDevice).blocks, 4);
  EXPECT_EQ(decode_shares({64, 40, false}, kShareDevice).blocks, 2);
  EXPECT_EQ(decode_shares({67, 40, false}, kShareDevice).blocks, 1);
  for (const int64_t items : {1, 8, 67, 132})
    EXPECT_EQ(decode_shares({items, 40, false}, kShareDevice).warps, kSmWarps);
}

TEST(DecodeShares, MoreRowsThanSmsTakeHalfAnSmEach) {
  for (const int64_t items : {133, 1024, 131072}) {
    const DecodeShares shares = decode_shares({items, 40, false}, kShareDevice);
    EXPECT_EQ(shares.blocks, 1);
    EXPECT_EQ(shares.warps, kSmWarps / 2);
  }
}

TEST(DecodeShares, EveryCrewHasAStep) {
  EXPECT_EQ(decode_shares({1, 0, false}, kShareDevice).blocks, 1);
  EXPECT_EQ(decode_shares({1, 8, false}, kShareDevice).blocks, 1);
  EXPECT_EQ(decode_shares({1, 9, false}, kShareDevice).blocks, 2);
  EXPECT_EQ(decode_shares({1, 1000, false}, kShareDevice).blocks, kMostShares);
  // Four warps a crew.
  const ShareDevice fours{132, 4, kShareDevice.clusters};
  EXPECT_EQ(decode_shares({1, 8, false}, fours).blocks, 2);
  EXPECT_EQ(decode_shares({1, 40, false}, fours).blocks, 8);
}

TEST(DecodeShares, FullySharedRowsAreResidentWithAStepForEveryCrew) {
  EXPECT_TRUE(fully_shared({2, 40, false}, kShareDevice));
  EXPECT_TRUE(fully_shared({22, 40, false}, kShareDevice));
  EXPECT_FALSE(fully_shared({23, 40, false}, kShareDevice));
  EXPECT_FALSE(fully_shared({2, 65, false}, kShareDevice));
  EXPECT_TRUE(fully_shared({132, 8, false}, kShareDevice));
  EXPECT_FALSE(fully_shared({133, 8, false}, kShareDevice));
  EXPECT_FALSE(fully_shared({2, 40, true}, kShareDevice));
}

TEST(DecodeShares, BatchInvariantRowsAreCutByTheirKeysAlone) {
  for (const int64_t steps : {0, 1, 8, 40, 300}) {
    const DecodeShares alone = decode_shares({1, steps, true}, kShareDevice);
    EXPECT_LE(alone.blocks, kMostShares);
    for (const int64_t items : {2, 66, 133, 4096}) {
      const DecodeShares shares = decode_shares({items, steps, true}, kShareDevice);
      EXPECT_EQ(shares.blocks, alone.blocks);
      EXPECT_EQ(shares.warps, alone.warps);
    }
  }
}

}  // namespace
}  // namespace megamla::plan
