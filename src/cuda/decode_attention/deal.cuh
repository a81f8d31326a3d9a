// Rows of any lengths dealt out to blocks: block b of n takes the b-th part of all rows' tiles, one row after the
// other. All blocks come to the same answer from the rows' lengths, each for itself.
#pragma once

#include "cuda/decode_attention/tiles.cuh"

namespace megamla::cuda {

// In tiles: the end of a row, and what a block loses by parts of rows.
constexpr uint32_t kEndCost = 1;
constexpr uint32_t kPartsCost = 3;

struct RowTiles {
  int window, compressed;
  __device__ __forceinline__ uint32_t tiles() const { return static_cast<uint32_t>(window + compressed); }
  __device__ __forceinline__ uint32_t cost() const { return tiles() + kEndCost; }
  // The tile, numbered by full widths, of which `before` tiles that hold keys lie before.
  __device__ __forceinline__ int number(const DecodeParams& p, uint32_t before) const {
    const int n = static_cast<int>(before);
    return n < window ? n : p.window_tiles + n - window;
  }
};

__device__ __forceinline__ RowTiles row_tiles(const DecodeParams& p, uint32_t item) {
  const int64_t token = item >> p.head_tiles_log;
  const auto tiles = [&](int i) {
    const DecodeKeys& keys = p.keys[i];
    return tiles_of(p, i, keys.lens == nullptr ? keys.width : keys.lens[token * keys.lens_stride]);
  };
  return {tiles(0), tiles(1)};
}

__device__ __forceinline__ uint32_t sum_of_warp(uint32_t v) { return __reduce_add_sync(~0u, v); }

// What all rows cost, and the block that has most to do if every block takes whole rows in turn.
__device__ __forceinline__ uint32_t cost_of_rows(const DecodeParams& p, Deal& deal, uint32_t* most) {
  uint32_t mine = 0;
  if (threadIdx.x < gridDim.x) {
#pragma unroll 4
    for (uint32_t item = threadIdx.x; item < p.items; item += gridDim.x) mine += row_tiles(p, item).cost();
  }
  const uint32_t sum = sum_of_warp(mine);
  const uint32_t largest = __reduce_max_sync(~0u, mine);
  if (threadIdx.x % 32 == 0) deal.warp_cost[threadIdx.x / 32] = sum, deal.warp_most[threadIdx.x / 32] = largest;
  __syncthreads();
  const uint32_t warp = threadIdx.x % 32;
  *most = __reduce_max_sync(~0u, warp < kThreads / 32 ? deal.warp_most[warp] : 0);
  return sum_of_warp(warp < kThreads / 32 ? deal.warp_cost[warp] : 0);
}

// This block's rows are those that begin or go on at a cost of low .. low + share - 1 before them.
__device__ __forceinline__ void find_rows(const DecodeParams& p, Deal& deal, uint32_t share) {
  const uint32_t low = blockIdx.x * share;
  const uint32_t high = low + share;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t before = 0;  // of the rows before those of this turn
#pragma unroll 1
  for (uint32_t first = 0; first < p.items && before < high; first += kThreads) {
    const uint32_t item = first + threadIdx.x;
    const RowTiles row = item < p.items ? row_tiles(p, item) : RowTiles{0, 0};
    const uint32_t cost = item < p.items ? row.cost() : 0;
    uint32_t to_here = cost;
#pragma unroll
    for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, to_here, lanes);
      if (lane >= lanes) to_here += other;
    }
    __syncthreads();  // the last turn's sums have been read
    if (lane == 31) deal.warp_cost[threadIdx.x / 32] = to_here;
    __syncthreads();
    const uint32_t sum = lane < kThreads / 32 ? deal.warp_cost[lane] : 0;
    const uint32_t at = before + to_here - cost + sum_of_warp(lane < threadIdx.x / 32 ? sum : 0);
    before += sum_of_warp(sum);
    const uint32_t end = at + row.tiles();
    const bool continued = at < low && low < end;
    if (item < p.items && (continued || (at >= low && at < high))) {
      atomicMin(&deal.first, static_cast<int>(item));
      atomicMax(&deal.last, static_cast<int>(item));
      const int home = static_cast<int>(at / share);
      const PartsOfRow parts{home, static_cast<int>((end - 1) / share) - home + 1};
      if (continued) deal.begin = row.number(p, low - at), deal.of[0] = parts;
      if (high < end) deal.end = row.number(p, high - at);
      if (high < end && !continued) deal.of[1] = parts;
    }
  }
  __syncthreads();
}

// For all threads of the block, before its roles begin.
__device__ __forceinline__ void deal_out(const DecodeParams& p, Deal& deal) {
  if (threadIdx.x == 0) deal.first = INT32_MAX, deal.last = -1, deal.begin = 0, deal.end = p.tiles;
  uint32_t most;
  const uint32_t cost = cost_of_rows(p, deal, &most);
  const uint32_t share = (cost + gridDim.x - 1) / gridDim.x;
  const bool whole = most <= share + kPartsCost;
  if (threadIdx.x == 0) deal.whole = whole ? 1 : 0;
  if (whole) {
    __syncthreads();
  } else {
    find_rows(p, deal, share);
  }
}

}  // namespace megamla::cuda
