// Many tokens in FP8: codes are multiplied as they are, at twice the rate of bf16, and each 32 columns' products are
// added to fp32 sums with the scales of token and row.
//
// Tokens are M, so that a lane has 2 of them and 32 rows: where 32 rows share their scales, which producers find out,
// 64 sums take 8 factors, and these come from a table that producers keep.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/e4m3_shape.hpp"
#include "cuda/block_scaled_linear/inputs.cuh"
#include "cuda/block_scaled_linear/row_copies.cuh"
#include "cuda/block_scaled_linear/store_tile.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/matrix_load.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"

namespace megamla::cuda::linear {

// 2^(a - 127) * 2^(b - 127), at most 2^127: a factor of products that are 0 must not be infinite.
__device__ inline float scale_factor(uint32_t a, uint32_t b) {
  const auto scale = [](uint32_t byte) {
    return __uint_as_float(byte == 0xff ? 0x7fc00000U : byte == 0 ? 0x00400000U : byte << 23);
  };
  float factor;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(factor) : "f"(scale(a) * scale(b)), "f"(0x1p127F));
  return factor;
}
__device__ inline uint32_t byte_of(uint32_t word, int i) { return (word >> (8 * i)) & 0xff; }

// A producer thread's scales: two tokens, and a row; its warp has a block of 32 rows.
class E4m3Scales {
  using Shape = E4m3Shape;
  static constexpr int kOwnTokens = Shape::kTokens / kProducerThreads;
  static_assert(Shape::kRows == kProducerThreads);

 public:
  __device__ explicit E4m3Scales(int thread) : thread_(thread) {}
  __device__ void begin(const LinearArgs& a, const TilePlace& p) {
    first_token_ = p.first_token;
    group_ = static_cast<int>(p.group);
    const int64_t first = row_scales(a, p, 0);
    of_rows_ = a.weight_scale + first;
    row_ = static_cast<int>(row_scales(a, p, thread_) - first);
#pragma unroll
    for (int i = 1; i < Shape::kRowBlocks; ++i) block_[i - 1] = static_cast<int>(row_scales(a, p, 32 * i) - first);
  }
  __device__ void load(const LinearArgs& a, int column) {
    const int64_t of_column = x_scale_of_column(a, column);
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int64_t token = min(first_token_ + thread_ + i * kProducerThreads, a.tokens - 1);
      token_words_[i] = word(static_cast<const uint8_t*>(a.x_scale) + x_scale_of_token(a, token, group_) + of_column);
    }
    const uint8_t* of_rows = of_rows_ + column / 32;
    row_word_ = word(of_rows + row_);
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks; ++i) block_words_[i] = word(of_rows + (i == 0 ? 0 : block_[i - 1]));
  }
  __device__ void store(uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int token = thread_ + i * kProducerThreads;
      ptx::store_shared(stage + Shape::kTokenWords + 4 * token, token_words_[i]);
#pragma unroll
      for (int group = 0; group < Shape::kScaleGroups; ++group) {
        const uint32_t x = byte_of(token_words_[i], group);
        uint32_t factors[Shape::kRowBlocks];
#pragma unroll
        for (int block = 0; block < Shape::kRowBlocks; ++block) {
          factors[block] = __float_as_uint(scale_factor(x, byte_of(block_words_[block], group)));
        }
        ptx::store_shared(stage + (group * Shape::kTokens + token) * 16,
                          uint4{factors[0], factors[1], factors[2], factors[3]});
      }
    }
    ptx::store_shared(stage + Shape::kRowWords + 4 * thread_, row_word_);
    const bool shared = __all_sync(kFullWarp, row_word_ == __shfl_sync(kFullWarp, row_word_, 0));
    if (thread_ % 32 == 0) ptx::store_shared(stage + Shape::kShared + thread_ / 32 * 4, uint32_t{shared ? 1U : 0U});
  }

 private:
  // Rows beyond the last have the last one's.
  __device__ static int64_t row_scales(const LinearArgs& a, const TilePlace& p, int row) {
    const int64_t of_all = p.group * a.out + min(p.first_row + row, a.out - 1);
    return (of_all >> a.rows_per_scale_log2) * (a.in / 32);
  }
  __device__ static uint32_t word(const uint8_t* from) { return __ldg(reinterpret_cast<const uint32_t*>(from)); }

  int thread_, group_;
  int64_t first_token_;
  const uint8_t* of_rows_;  // of the tile's first row
  int row_, block_[Shape::kRowBlocks - 1];
  uint32_t token_words_[kOwnTokens], row_word_, block_words_[Shape::kRowBlocks];
};

__device__ inline void produce_codes(const LinearArgs& a, const Shared<E4m3Shape>& shared, int thread) {
  using Shape = E4m3Shape;
  RowCopies<Shape::kTokens, Shape::kColumns> x(thread);
  RowCopies<Shape::kRows, Shape::kColumns> weights(thread);
  E4m3Scales scales(thread);
  RingPlace<Shape> place;
  int loaded = -1;  // the stage whose scales are in registers
  const auto finish = [&](int stage) {
    ptx::fence_async_proxy();
    scales.store(shared.scales(stage));
    ptx::mbarrier_arrive(shared.full(stage));
  };
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<Shape>(a, walk);
    const WeightRows rows = weight_rows<Shape>(a, p);
    weights.begin(rows.first, rows.pitch, rows.count, p.end);
    x.begin(static_cast<const uint8_t*>(a.x) + p.first_token * a.x_token + p.group * a.x_group, a.x_token,
            a.tokens - p.first_token, p.end);
    scales.begin(a, p);
    for (int column = 0; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
      x.copy(column, shared.x(place.stage));
      weights.copy(column, shared.weights(place.stage));
      ptx::commit_copies();
      if (loaded >= 0) {
        ptx::wait_copies<1>();
        finish(loaded);
      }
      scales.load(a, column);
      loaded = place.stage;
      place.advance();
    }
  }
  if (loaded < 0) return;
  ptx::wait_copies<0>();
  finish(loaded);
}

// 128 tokens by 128 rows of a warpgroup.
class CodeMultiplier {
  using Shape = E4m3Shape;
  static constexpr int kRowPairs = Shape::kRows / 8;  // of a lane, in each of its tokens

 public:
  __device__ CodeMultiplier(const Shared<Shape>& shared, int thread) : shared_(shared), thread_(thread) {
    token_ = thread / 128 * 64 * Shape::kTokenTiles + thread / 32 % 4 * 16 + thread % 32 / 4;
  }

  __device__ void run(int columns) {
#pragma unroll
    for (auto& of_tile : sum_) {
#pragma unroll
      for (float& value : of_tile) value = 0;
    }
#pragma unroll 1
    for (int column = 0; column < columns; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared_.full(place_.stage), place_.parity);
      const uint32_t scales = shared_.scales(place_.stage);
      const uint4 blocks = ptx::load_shared(scales + Shape::kShared);
      const bool shared = (blocks.x & blocks.y & blocks.z & blocks.w) != 0;
      const ptx::Descriptor x(shared_.x(place_.stage) + thread_ / 128 * 64 * Shape::kTokenTiles * 128, 0, 1024);
      const ptx::Descriptor weights(shared_.weights(place_.stage), 0, 1024);
#pragma unroll 1
      for (int group = 0; group < Shape::kScaleGroups; ++group) {
#pragma unroll
        for (int tile = 0; tile < Shape::kTokenTiles; ++tile) {
          float products[64];
          ptx::wgmma_fence();
          ptx::wgmma_e4m3_m64n128k32(products, x.at(tile * 64 * 128 + group * 32), weights.at(group * 32));
          ptx::wgmma_commit();
          const uint32_t table = scales + (group * Shape::kTokens + token_ + 64 * tile) * 16;
          const uint4 factors[2] = {ptx::load_shared(table), ptx::load_shared(table + 8 * 16)};
          ptx::wgmma_wait<0>();
          ptx::pin(products);
          if (shared) {
            add(products, factors, sum_[tile]);
          } else {
            add_by_rows(products, scales, group, tile, sum_[tile]);
          }
        }
      }
      if (thread_ % 32 == 0) ptx::mbarrier_arrive(shared_.empty(place_.stage));
      place_.advance();
    }
  }

  // A warp's tokens, 8 by 64 rows at a time, through its own part of shared memory.
  __device__ void store(const LinearArgs& a, const TilePlace& p) const {
    const int lane = thread_ % 32;
    float* turn = shared_.round_sums() + thread_ / 32 * (Shape::kTurnBytes / 4);
    float* to = turn + lane / 4 * Shape::kTurnPitch + lane % 4 * 2;
    const int lane_row = lane % 16 * kLaneRows;
    const float* from = turn + lane / 16 * Shape::kTurnPitch + lane_row;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        if (i == part) write_part(i, to);
      }
      __syncwarp();
      const int64_t first = p.first_token + token_ - lane / 4 + part / 4 * 64 + part / 2 % 2 * 8;
      const int64_t row = p.first_row + part % 2 * Shape::kTurnRows + lane_row;
#pragma unroll 1
      for (int i = 0; i < 8 && first + i < a.tokens; i += 2) {  // two tokens at once
        const float4 four = *reinterpret_cast<const float4*>(from + i * Shape::kTurnPitch);
        float v[kLaneRows] = {four.x, four.y, four.z, four.w};
        // A token beyond the last is left out as a row beyond the last is.
        const int64_t token = first + i + lane / 16;
        store_lane(a, v, token, p.group, token < a.tokens ? row : a.out);
      }
    }
  }

 private:
  // Parts: of each tile of 64 tokens the lanes' first and second tokens, of each the first and the second 64 rows.
  static constexpr int kParts = 4 * Shape::kTokenTiles;
  __device__ void write_part(int part, float* to) const {
#pragma unroll
    for (int i = 0; i < Shape::kTurnRows / 8; ++i) {
      const float* pair = &sum_[part / 4][4 * (part % 2 * Shape::kTurnRows / 8 + i) + part / 2 % 2 * 2];
      *reinterpret_cast<float2*>(to + 8 * i) = {pair[0], pair[1]};
    }
  }
  __device__ static void add(const float (&products)[64], const uint4 (&factors)[2], float (&sum)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const uint4& of_token = factors[i / 2 % 2];
      const int block = i / 16;
      const uint32_t bits = block == 0 ? of_token.x : block == 1 ? of_token.y : block == 2 ? of_token.z : of_token.w;
      sum[i] = fmaf(products[i], __uint_as_float(bits), sum[i]);
    }
  }
  // A scale for each row.
  __device__ void add_by_rows(const float (&products)[64], uint32_t scales, int group, int tile,
                              float (&sum)[64]) const {
    uint32_t of_token[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of_token[i] =
          byte_of(ptx::load_shared_word(scales + Shape::kTokenWords + 4 * (token_ + 64 * tile + 8 * i)), group);
    }
#pragma unroll
    for (int pair = 0; pair < kRowPairs; ++pair) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * pair + thread_ % 4 * 2 + i;
        const uint32_t of_row = byte_of(ptx::load_shared_word(scales + Shape::kRowWords + 4 * row), group);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& to = sum[4 * pair + 2 * k + i];
          to = fmaf(products[4 * pair + 2 * k + i], scale_factor(of_token[k], of_row), to);
        }
      }
    }
  }

  const Shared<Shape>& shared_;
  int thread_, token_;  // the lane's first token in the tile
  RingPlace<Shape> place_;
  float sum_[Shape::kTokenTiles][64];
};

__global__ void __launch_bounds__(kThreads, 1) e4m3_kernel(const __grid_constant__ LinearArgs a) {
  extern __shared__ uint8_t memory[];
  const Shared<E4m3Shape> shared(memory);
  ptx::let_next_begin();
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  ptx::wait_for_previous();
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread >= kMultiplierThreads) {
    ptx::give_registers<E4m3Shape::kProducerRegisters>();
    produce_codes(a, shared, thread - kMultiplierThreads);
    return;
  }
  ptx::take_registers<E4m3Shape::kMultiplierRegisters>();
  CodeMultiplier multiplier(shared, thread);
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<E4m3Shape>(a, walk);
    multiplier.run(p.end);
    multiplier.store(a, p);
    if (p.first_token + E4m3Shape::kTokens >= a.tokens) {
      store_padding<E4m3Shape>(a, p, thread / 32, kMultiplierWarps);
    }
  }
}

}  // namespace megamla::cuda::linear
