#include "plan/decode_split.hpp"

#include <algorithm>

namespace megamla::plan {

DecodeSplit decode_split(const DecodeStep& step, const DecodeDevice& device) {
  const DecodeSplit whole{1, std::min<int64_t>(step.items, device.blocks), step.items};
  if (step.batch_invariant) return whole;
  if (step.items > device.blocks) {
    const int64_t rest = step.items % device.blocks;
    if (rest == 0 || rest > device.clusters[2] || device.blocks % 2 != 0 || step.key_tiles < 2) return whole;
    return {2, device.blocks, step.items - rest};
  }
  DecodeSplit best = whole;
  int64_t fewest_tiles = step.key_tiles;
  for (int n = 2; n <= kMostClusterBlocks; ++n) {
    const int64_t tiles = (step.key_tiles + n - 1) / n;
    if (step.items > device.clusters[static_cast<size_t>(n)] || tiles >= fewest_tiles) continue;
    fewest_tiles = tiles;
    best = {n, step.items * n, 0};
  }
  return best;
}

}  // namespace megamla::plan
