// Up to 16 tokens: the time is that of reading the weights once, and they lie one row after the other. Tiles
// of 16 whole rows come with a few large copies, as many as shared memory holds; 16 warps share a tile's columns and
// keep x of their own in registers.
//
// The 16 rows are the M of a warp's matrix multiply and 8 tokens its N. A lane's eight neighbouring codes of a row are
// its k = 2t, 2t+1, 2t+8, 2t+9 of two steps, and so are its eight columns of x. Codes are multiplied as f16, exact;
// each 32 columns' products are added to fp32 sums with the scale of the row. x is taken relative to the largest of the
// token's columns that a warp has, and becomes f16: exact to 2^-39 of that one.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/few_tokens_shape.hpp"
#include "cuda/block_scaled_linear/inputs.cuh"
#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/store_tile.cuh"
#include "cuda/f16x2.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/sync.cuh"

namespace megamla::cuda::linear {

// 2^(byte - 127), NaN of 255.
__device__ inline float scale_value(uint32_t byte) {
  const float power = __uint_as_float(max(byte << 23, 0x00400000U));
  return fmaf(power, 0.0F, power);  // of infinity NaN
}

// What a block works on.
struct FewTokensPlace {
  int64_t group, first_row;  // of the group
  int first, columns;        // of the block
  uint32_t rank;             // in the cluster that shares the rows

  // Computed anew where it is asked for: nothing of it waits in registers while products are added.
  __device__ explicit FewTokensPlace(const LinearArgs& a) {
    uint32_t block = blockIdx.x;
    ptx::forget(block);
    const uint32_t tile = a.splits == 1 ? block : block / a.splits;
    rank = block - tile * a.splits;
    group = a.groups == 1 ? 0 : tile / a.group_row_tiles;
    first_row = (tile - group * a.group_row_tiles) * kTileRows * a.few.tiles;
    columns = a.few.columns;
    first = static_cast<int>(rank) * columns;
  }
  __device__ const uint8_t* weights(const LinearArgs& a, int row) const {
    return static_cast<const uint8_t*>(a.weight) + (group * a.out + first_row + row) * a.in + first;
  }
  __device__ const uint8_t* scales(const LinearArgs& a, int row) const {
    return a.weight_scale + ((group * a.out + first_row + row) >> a.rows_per_scale_log2) * (a.in / 32) + first / 32;
  }
};

class FewTokensShared {
 public:
  __device__ FewTokensShared(uint8_t* memory, const LinearArgs& a) : memory_(memory), a_(a) {}
  __device__ uint64_t* full(int stage) const { return reinterpret_cast<uint64_t*>(memory_) + stage; }
  __device__ uint64_t* empty(int stage) const { return full(a_.few.stages + stage); }
  __device__ uint32_t factors(int warp) const {
    return ptx::shared_address(memory_) + FewTokensLayout::kBarriers + warp * layout().factors;
  }
  __device__ float* sums() const {
    return reinterpret_cast<float*>(memory_ + FewTokensLayout::kBarriers + kFewTokensWarps * layout().factors);
  }
  __device__ uint32_t stage(int stage) const {
    return ptx::shared_address(memory_) + layout().first_stage + stage * layout().stage;
  }
  __device__ const FewTokensLayout& layout() const { return a_.few.layout; }
  __device__ int stages() const { return a_.few.stages; }

 private:
  uint8_t* memory_;
  const LinearArgs& a_;
};

// Brings a tile as soon as its stage is free. Rows that lie side by side come four at once; lanes of a warp take
// copies, and those of scales, which are one where they lie side by side.
__device__ inline void bring_tile(const LinearArgs& a, const FewTokensShared& shared, int tile, int stage,
                                  uint32_t free_parity, int lane) {
  const FewTokensPlace p(a);
  const FewTokensLayout& layout = shared.layout();
  const int groups = p.columns / 32;
  const bool block_scales = a.rows_per_scale_log2 != 0;
  const int scale_copies = block_scales || a.splits == 1 ? 1 : kTileRows;
  const int scale_bytes = !block_scales && a.splits == 1 ? kTileRows * groups : groups;
  uint64_t* full = shared.full(stage);
  ptx::mbarrier_wait(shared.empty(stage), free_parity);
  if (lane == 0) ptx::mbarrier_expect(full, kTileRows * p.columns + scale_copies * scale_bytes);
  __syncwarp();
  const uint32_t to = shared.stage(stage);
  const int copy = lane % kTileRows;
  if (lane < kTileRows) {
    if (copy < kTileRows >> layout.copy_rows_log2) {
      ptx::copy_bulk(to + copy * layout.copy_pitch, p.weights(a, kTileRows * tile + (copy << layout.copy_rows_log2)),
                     p.columns << layout.copy_rows_log2, full);
    }
  } else if (copy < scale_copies) {
    ptx::copy_bulk(to + layout.scales + copy * groups, p.scales(a, kTileRows * tile + copy), scale_bytes, full);
  }
}

// Loads that are asked for where they stand.
__device__ inline void load_now(const void* from, uint32_t (&v)[4]) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from)
               : "memory");
}
__device__ inline void load_now(const void* from, uint32_t& low, uint32_t& high) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"(from) : "memory");
}
__device__ inline void load_byte_now(const void* from, uint32_t& v) {
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
}

// x of a warp's columns: B fragments of f16, two steps of 16 columns a group; for each token a factor that is left.
template <class Shape>
class TokenFragments {
  static constexpr int kHalves = Shape::kTokens / 8;
  static constexpr int kGroups = Shape::kGroups;

 public:
  // Asks for all of it. `first`: a group of 32 columns.
  __device__ void load(const LinearArgs& a, int64_t group, int first, int lane) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      // Tokens beyond the last repeat it; their sums go nowhere.
      const int64_t token = min(int64_t{lane / 4 + 8 * half}, a.tokens - 1);
      const int64_t at = token * a.x_token + group * a.x_group + first * 32 + lane % 4 * 8;
      if constexpr (Shape::kFp8X) {
        const auto* from = static_cast<const uint8_t*>(a.x) + at;
        const auto* scales = static_cast<const uint8_t*>(a.x_scale) + x_scale_of_token(a, token, group);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          load_now(from + 32 * i, pairs_[i][half][0], pairs_[i][half][1]);
          load_byte_now(scales + x_scale_of_column(a, 32 * (first + i)), pairs_[i][half][2]);
        }
      } else {
        const auto* from = static_cast<const uint8_t*>(a.x) + 2 * at;
#pragma unroll
        for (int i = 0; i < kGroups; ++i) load_now(from + 64 * i, pairs_[i][half]);
      }
    }
  }
  // What has come, to fragments.
  __device__ void convert() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if constexpr (Shape::kFp8X) {
        convert_codes(half);
      } else {
        convert_bf16(half);
      }
    }
  }
  // Of columns 8t .. 8t+3 or (step 1) 8t+4 .. 8t+7.
  __device__ void multiply(float (&d)[4], const ptx::FragmentA& weights, int group, int step, int half) const {
    ptx::mma_f16(d, weights, pairs_[group][half][2 * step], pairs_[group][half][2 * step + 1]);
  }
  // Of tokens 2t and 2t + 1: lanes 8t and 8t + 4 have them.
  __device__ float2 factors(int half, int lane) const {
    return {__shfl_sync(kFullWarp, factors_[half], lane % 4 * 8),
            __shfl_sync(kFullWarp, factors_[half], lane % 4 * 8 + 4)};
  }

 private:
  __device__ void convert_codes(int half) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) largest = max(largest, pairs_[i][half][2]);
      // Codes of the largest scale times 2^7: f16 then holds all bits of codes of scales down to 2^-22 of it.
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      uint32_t(&v)[4] = pairs_[i][half];
      const auto below = static_cast<int>(largest - v[2]);
      const uint32_t power = below <= 21 ? static_cast<uint32_t>(22 - below) << 10 : (1U << 10) >> min(below - 21, 11);
      const uint32_t codes[2] = {v[0], v[1]};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        v[2 * k] = f16x2_multiply(ptx::low_e4m3_to_f16(codes[k]), power | (power << 16));
        v[2 * k + 1] = f16x2_multiply(ptx::high_e4m3_to_f16(codes[k]), power | (power << 16));
      }
    }
    factors_[half] = scale_value(largest) * 0x1p-7F;
  }
  __device__ void convert_bf16(int half) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (const uint32_t word : pairs_[i][half]) {
        largest = fmaxf(largest, fmaxf(fabsf(bf16x2_low(word)), fabsf(bf16x2_high(word))));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    // 2^up makes the largest's exponent 14; both factors are normal numbers.
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 15);
    const float up = __uint_as_float(static_cast<uint32_t>(127 + 127 + 14 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (uint32_t& word : pairs_[i][half]) word = f16x2_round(bf16x2_low(word) * up, bf16x2_high(word) * up);
    }
    factors_[half] = __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);
  }

  uint32_t pairs_[kGroups][kHalves][4];
  float factors_[kHalves];
};

// A warp's part of the columns, of every tile or of every second, fourth ... Two warps bring what tiles shared memory
// holds, one after the other: all at once, none would be there early. x is asked for behind the first, and before the
// others. Then warps in turn bring another whenever all should be done with one.
template <class Shape>
__device__ inline void multiply_tiles(const LinearArgs& a, const FewTokensShared& shared, int warp, int lane) {
  constexpr int kGroups = Shape::kGroups;
  constexpr int kHalves = Shape::kTokens / 8;
  constexpr int kChunk = kHalves == 1 ? kGroups : 1;  // groups whose codes are in registers at once
  const FewTokensLayout& layout = shared.layout();
  const int part = warp >> a.few.row_warps_log2;
  const int row_warps = 1 << a.few.row_warps_log2;
  const int row_warp = warp & (row_warps - 1);
  TokenFragments<Shape> x;
  if (warp == 0) bring_tile(a, shared, 0, 0, 1, lane);
  {
    const FewTokensPlace p(a);
    x.load(a, p.group, p.first / 32 + part * kGroups, lane);
  }
  if (warp == 1) {
#pragma unroll 1
    for (int tile = 1; tile < shared.stages(); ++tile) bring_tile(a, shared, tile, tile, 1, lane);
  }
  x.convert();

  int stage = row_warp;
  uint32_t parity = 0;
#pragma unroll 1
  for (int tile = row_warp; tile < a.few.tiles; tile += row_warps) {
    // Computed anew for each tile: registers are few.
    uint32_t thread = threadIdx.x;
    ptx::forget(thread);
    const uint32_t lane = thread % 32;
    const uint32_t part = thread / 32 >> a.few.row_warps_log2;
    const uint32_t turn = static_cast<uint32_t>(tile) >> a.few.row_warps_log2;
    const int next = tile - row_warps + shared.stages();
    if (turn > 0 && (turn & ((kFewTokensWarps >> a.few.row_warps_log2) - 1)) == part && next < a.few.tiles) {
      const bool wrapped = stage < row_warps;  // since the tile before
      bring_tile(a, shared, next, stage - row_warps + (wrapped ? shared.stages() : 0), wrapped ? parity ^ 1 : parity,
                 static_cast<int>(lane));
    }
    const uint32_t factors = shared.factors(thread / 32);
    const uint32_t scale_pitch = a.rows_per_scale_log2 != 0 ? 0 : static_cast<uint32_t>(a.few.columns) / 32;
    const uint32_t scale_row = layout.row(lane % 8) + lane / 8 % 2 * layout.second_row;
    const uint32_t scale_at = layout.scales + scale_row * scale_pitch + part * kGroups + lane / kTileRows;
    const uint32_t factor_to = factors + 4 * (lane / kTileRows * kTileRows + lane % 8 * 2 + lane / 8 % 2);
    const uint32_t code_at = layout.row_at(lane / 4, a.few.columns) + part * kGroups * 32 + lane % 4 * 8;
    ptx::mbarrier_wait(shared.full(stage), parity);
    const uint32_t from = shared.stage(stage);
    // [group][row g, row g + 8]
#pragma unroll
    for (int i = 0; i < (kGroups + 1) / 2; ++i) {
      if (2 * i + lane / kTileRows < kGroups) {
        const uint32_t byte = ptx::load_shared_u8(from + scale_at + 2 * i);
        ptx::store_shared(factor_to + 4 * 2 * i * kTileRows, __float_as_uint(scale_value(byte)));
      }
    }
    float sums[kHalves][4] = {};
    uint2 codes[kChunk][2];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i % kChunk == 0) {
#pragma unroll
        for (int k = 0; k < 2 * kChunk; ++k) {
          if (i + k / 2 >= kGroups) continue;
          codes[k / 2][k % 2] = ptx::load_shared_2(from + code_at + k % 2 * layout.second + (i + k / 2) * 32);
        }
        __syncwarp();
        if (i + kChunk >= kGroups && lane == 0) ptx::mbarrier_arrive(shared.empty(stage));
      }
      const uint2(&c)[2] = codes[i % kChunk];
      const ptx::FragmentA weights[2] = {{ptx::low_e4m3_to_f16(c[0].x), ptx::low_e4m3_to_f16(c[1].x),
                                          ptx::high_e4m3_to_f16(c[0].x), ptx::high_e4m3_to_f16(c[1].x)},
                                         {ptx::low_e4m3_to_f16(c[0].y), ptx::low_e4m3_to_f16(c[1].y),
                                          ptx::high_e4m3_to_f16(c[0].y), ptx::high_e4m3_to_f16(c[1].y)}};
      const uint2 of_rows = ptx::load_shared_2(factors + 4 * i * kTileRows + lane / 4 * 8);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float products[4] = {};
        x.multiply(products, weights[0], i, 0, half);
        x.multiply(products, weights[1], i, 1, half);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sums[half][k] = fmaf(products[k], __uint_as_float(k < 2 ? of_rows.x : of_rows.y), sums[half][k]);
        }
      }
    }
    ptx::forget(thread);
    const uint32_t to =
        ptx::shared_address(shared.sums()) +
        4 * (((thread / 32 >> a.few.row_warps_log2) * Shape::kTokens + thread % 4 * 2) * layout.sums_pitch +
             layout.row(thread / 4 % 8));
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float2 of_tokens = x.factors(half, static_cast<int>(thread % 32));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float value = sums[half][k] * (k % 2 == 0 ? of_tokens.x : of_tokens.y);
        ptx::store_shared(
            to + 4 * ((8 * half + k % 2) * layout.sums_pitch + kTileRows * tile + k / 2 * layout.second_row),
            __float_as_uint(value));
      }
    }
    stage += row_warps;
    if (stage >= shared.stages()) {
      stage -= shared.stages();
      parity ^= 1;
    }
    __syncwarp();  // factors are read
  }
}

// Parts of this block, four rows of a token, in the order of their columns.
template <class Shape>
__device__ inline void add_few_tokens(const float* sums, const FewTokensLayout& layout, int parts, int token, int row,
                                      float (&v)[kLaneRows]) {
  for (int part = 0; part < parts; ++part) {
    add_part(*reinterpret_cast<const float4*>(sums + (part * Shape::kTokens + token) * layout.sums_pitch + row), v);
  }
}

// With blocks that share rows each adds its parts up where the first lie; then each takes
// some tokens and rows from all blocks, in their order.
template <class Shape>
__device__ inline void store_few_tokens(const LinearArgs& a, const FewTokensShared& shared, int thread) {
  const FewTokensPlace p(a);
  const FewTokensLayout& layout = shared.layout();
  const int parts = kFewTokensWarps >> a.few.row_warps_log2;
  const int lane_groups = kTileRows * a.few.tiles / kLaneRows;
  float* sums = shared.sums();
  if (a.splits > 1) {
    for (int item = thread; item < static_cast<int>(a.tokens) * lane_groups; item += kFewTokensThreads) {
      const int token = item / lane_groups;
      const int row = item % lane_groups * kLaneRows;
      float v[kLaneRows] = {};
      add_few_tokens<Shape>(sums, layout, parts, token, row, v);
      *reinterpret_cast<float4*>(sums + token * layout.sums_pitch + row) = {v[0], v[1], v[2], v[3]};
    }
    ptx::cluster_barrier();
  }
  // MXFP8 has scales of padding, too. All lanes of a warp go on until the last is done: its groups are shared by lanes.
  const int64_t tokens = a.output == MEGAMLA_LINEAR_OUT_MXFP8 ? format::round_up(a.tokens, 128) : a.tokens;
  const int items = static_cast<int>(tokens) * lane_groups;
  const int first = static_cast<int>(p.rank) * kFewTokensThreads + thread;
  for (int item = first; item - thread % 32 < items; item += kFewTokensThreads * static_cast<int>(a.splits)) {
    const int token = item / lane_groups;
    const int row = item % lane_groups * kLaneRows;
    const bool there = item < items;
    float v[kLaneRows] = {};
    if (there && token < a.tokens) {
      if (a.splits > 1) {
        add_parts(sums + token * layout.sums_pitch + row, a.splits, v);
      } else {
        add_few_tokens<Shape>(sums, layout, parts, token, row, v);
      }
    }
    store_lane(a, v, token, p.group, there ? p.first_row + row : a.out);
  }
  if (a.splits > 1) ptx::cluster_leave();
}

template <class Shape>
__global__ void __launch_bounds__(kFewTokensThreads, 1) few_tokens_kernel(const __grid_constant__ LinearArgs a) {
  extern __shared__ uint8_t memory[];
  ptx::let_next_begin();
  const FewTokensPlace p(a);
  const int parts = kFewTokensWarps >> a.few.row_warps_log2;
  const FewTokensShared shared(memory, a);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  if (warp == 0) {
    if (lane < shared.stages()) {
      ptx::mbarrier_init(shared.full(lane), 1);
      ptx::mbarrier_init(shared.empty(lane), parts);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  ptx::wait_for_previous();
  multiply_tiles<Shape>(a, shared, warp, lane);
  __syncthreads();
  store_few_tokens<Shape>(a, shared, thread);
}

}  // namespace megamla::cuda::linear
