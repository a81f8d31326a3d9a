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
// Whether four scale bytes are all in 64 .. 191. The factor of two such, one of them below 191, is a normal number,
// whose exponent is the sum of theirs.
__device__ inline bool are_ordinary(uint32_t scales) { return ((scales ^ (scales << 1)) & 0x80808080U) == 0x80808080U; }

// A producer thread's scales: of some tokens and a row; its warp has a block of 32 rows.
template <class Shape>
class E4m3Scales {
  static constexpr int kOwnTokens = Shape::kTokens / kProducerThreads;
  static_assert(Shape::kRows == kProducerThreads && Shape::kRowBlocks == 4);

 public:
  __device__ explicit E4m3Scales(int thread) : thread_(thread) {}
  __device__ void begin(const LinearArgs& a, const TilePlace& p) {
    // Rows beyond the last have the last one's, tokens likewise.
    const int64_t row = p.group * a.out + min(p.first_row + thread_, a.out - 1);
    of_row_ = a.weight_scale + (row >> a.rows_per_scale_log2) * (a.in / 32);
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int64_t token = min(p.first_token + thread_ + i * kProducerThreads, a.tokens - 1);
      of_token_[i] = static_cast<const uint8_t*>(a.x_scale) + x_scale_of_token(a, token, p.group);
    }
  }
  // Words of four groups.
  __device__ void copy(const LinearArgs& a, int column, uint32_t stage) const {
    const int64_t of_column = x_scale_of_column(a, column);
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      ptx::copy_4_async(stage + Shape::kTokenWords + 4 * (thread_ + i * kProducerThreads), of_token_[i] + of_column,
                        true);
    }
    ptx::copy_4_async(stage + Shape::kRowWords + 4 * thread_, of_row_ + column / 32, true);
  }
  // From the words of all producers.
  __device__ void make_factors(uint32_t stage) const {
    uint32_t blocks[Shape::kRowBlocks];
    bool ordinary = true;
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks; ++i) {
      blocks[i] = ptx::load_shared_word(stage + Shape::kRowWords + 4 * 32 * i);
      ordinary = ordinary && are_ordinary(blocks[i]) && are_ordinary(blocks[i] + 0x01010101U);
    }
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int token = thread_ + i * kProducerThreads;
      const uint32_t of_token = ptx::load_shared_word(stage + Shape::kTokenWords + 4 * token);
      if (ordinary && are_ordinary(of_token)) {
#pragma unroll
        for (int group = 0; group < Shape::kScaleGroups; ++group) {
          const uint32_t x = (byte_of(of_token, group) - 127) << 23;
          ptx::store_shared(stage + (group * Shape::kTokens + token) * 16,
                            uint4{x + (byte_of(blocks[0], group) << 23), x + (byte_of(blocks[1], group) << 23),
                                  x + (byte_of(blocks[2], group) << 23), x + (byte_of(blocks[3], group) << 23)});
        }
        continue;
      }
#pragma unroll 1
      for (int k = 0; k < Shape::kScaleGroups; ++k) {
        const auto factor = [&](int block) {
          return __float_as_uint(scale_factor((of_token >> (8 * k)) & 0xff, (blocks[block] >> (8 * k)) & 0xff));
        };
        ptx::store_shared(stage + (k * Shape::kTokens + token) * 16, uint4{factor(0), factor(1), factor(2), factor(3)});
      }
    }
    const uint32_t own = ptx::load_shared_word(stage + Shape::kRowWords + 4 * thread_);
    const bool shared = __all_sync(kFullWarp, own == __shfl_sync(kFullWarp, own, 0));
    if (thread_ % 32 == 0) ptx::store_shared(stage + Shape::kShared + thread_ / 32 * 4, uint32_t{shared ? 1U : 0U});
  }

 private:
  int thread_;
  const uint8_t* of_token_[kOwnTokens];
  const uint8_t* of_row_;
};

template <class Shape>
__device__ inline void produce_codes(const LinearArgs& a, const Shared<Shape>& shared, int thread) {
  RowCopies<Shape::kTokens, Shape::kColumns> x(thread);
  RowCopies<Shape::kRows, Shape::kColumns> weights(thread);
  E4m3Scales<Shape> scales(thread);
  RingPlace<Shape> place;
  RingPlace<Shape> behind;  // the first stage that is on its way
  int on_their_way = 0;
  const auto finish = [&] {
    ptx::fence_async_proxy();
    ptx::named_barrier<2, kProducerThreads>();
    scales.make_factors(shared.scales(behind.stage));
    ptx::mbarrier_arrive(shared.full(behind.stage));
    behind.advance();
  };
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<Shape>(a, walk);
    const WeightRows rows = weight_rows<Shape>(a, p);
    weights.begin(rows.first, rows.pitch, rows.count, p.end);
    x.begin(static_cast<const uint8_t*>(a.x) + p.first_token * a.x_token + p.group * a.x_group, a.x_token,
            a.tokens - p.first_token, p.end);
    scales.begin(a, p);
    for (int column = p.begin; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
      weights.copy(column, shared.weights(place.stage));
      scales.copy(a, column, shared.scales(place.stage));
      x.copy(column, shared.x(place.stage));
      ptx::commit_copies();
      if (on_their_way == Shape::kLag) {
        ptx::wait_copies<Shape::kLag>();
        finish();
      } else {
        ++on_their_way;
      }
      place.advance();
    }
  }
  ptx::wait_copies<0>();
  for (; on_their_way > 0; --on_their_way) finish();
}

// 64 or 128 tokens by 128 rows of a warpgroup. The products of 64 tokens and 32 columns come in two halves of the rows:
// while one half's are added to the sums, the tensor cores work on the other.
template <class Shape>
class CodeMultiplier {
  static constexpr int kHalfRows = Shape::kRows / 2;

 public:
  __device__ CodeMultiplier(const Shared<Shape>& shared, int thread) : shared_(shared), thread_(thread) {
    token_ = thread / 128 * 64 * Shape::kTokenTiles + thread / 32 % 4 * 16 + thread % 32 / 4;
  }

  __device__ void run(const TilePlace& p) {
#pragma unroll
    for (auto& of_tile : sum_) {
#pragma unroll
      for (float& value : of_tile) value = 0;
    }
#pragma unroll 1
    for (int column = p.begin; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared_.full(place_.stage), place_.parity);
      const uint32_t scales = shared_.scales(place_.stage);
      const uint4 blocks = ptx::load_shared(scales + Shape::kShared);
      if ((blocks.x & blocks.y & blocks.z & blocks.w) != 0) {
        add_stage(scales);
      } else {
        add_stage_by_rows(scales);
      }
      if (thread_ % 32 == 0) ptx::mbarrier_arrive(shared_.empty(place_.stage));
      place_.advance();
    }
  }

  // To [token][row] of the block's sums.
  __device__ void write_sums(float* sums) const {
    float* to = sums + token_ * Shape::kSumPitch + thread_ % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < Shape::kTokenTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float* pair = &sum_[tile][2 * i];
        *reinterpret_cast<float2*>(to + (64 * tile + 8 * (i % 2)) * Shape::kSumPitch + i / 2 * 8) = {pair[0], pair[1]};
      }
    }
  }

  // A warp's tokens, 8 by 64 rows at a time, through its own part of shared memory.
  __device__ void store(const LinearArgs& a, const TilePlace& p) const {
    int thread = thread_;
    ptx::forget(thread);  // nothing of this waits in registers while products are added
    const int lane = thread % 32;
    const int token = thread / 128 * 64 * Shape::kTokenTiles + thread / 32 % 4 * 16;
    float* turn = shared_.round_sums() + thread / 32 * (Shape::kTurnBytes / 4);
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
      const int64_t first = p.first_token + token + part / 4 * 64 + part / 2 % 2 * 8;
      const int64_t row = p.first_row + part % 2 * Shape::kTurnRows + lane_row;
#pragma unroll 1
      for (int i = 0; i < 8 && first + i < a.tokens; i += 2) {  // two tokens at once
        const float4 four = *reinterpret_cast<const float4*>(from + i * Shape::kTurnPitch);
        float v[kLaneRows] = {four.x, four.y, four.z, four.w};
        // A token beyond the last is left out as a row beyond the last is.
        const int64_t to_token = first + i + lane / 16;
        store_lane(a, v, to_token, p.group, to_token < a.tokens ? row : a.out);
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
  using Products = float[kHalfRows / 2];

  // Step: a half of the rows, of a tile of tokens, of 32 columns.
  static constexpr int kSteps = 2 * Shape::kTokenTiles * Shape::kScaleGroups;
  static constexpr int half_of(int step) { return step % 2; }
  static constexpr int tile_of(int step) { return step / 2 % Shape::kTokenTiles; }
  static constexpr int group_of(int step) { return step / 2 / Shape::kTokenTiles; }

  __device__ void multiply(Products& products, const ptx::Descriptor& x, const ptx::Descriptor& weights,
                           int step) const {
    ptx::wgmma_fence();
    ptx::wgmma_e4m3_m64n64k32(products, x.at(tile_of(step) * 64 * 128 + group_of(step) * 32),
                              weights.at(half_of(step) * kHalfRows * 128 + group_of(step) * 32));
    ptx::wgmma_commit();
  }
  __device__ ptx::Descriptor x_of_stage() const {
    return {shared_.x(place_.stage) + thread_ / 128 * 64 * Shape::kTokenTiles * 128, 0, 1024};
  }
  __device__ ptx::Descriptor weights_of_stage() const { return {shared_.weights(place_.stage), 0, 1024}; }

  // Rows share their scales: a table has the factors. While one step's products are added, those of the next come.
  __device__ void add_stage(uint32_t scales) {
    const ptx::Descriptor x = x_of_stage();
    const ptx::Descriptor weights = weights_of_stage();
    Products products[2] = {};
    multiply(products[0], x, weights, 0);
    multiply(products[1], x, weights, 1);
    uint4 factors[2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (half_of(step) == 0) {
        const uint32_t table = scales + (group_of(step) * Shape::kTokens + token_ + 64 * tile_of(step)) * 16;
        factors[0] = ptx::load_shared(table);
        factors[1] = ptx::load_shared(table + 8 * 16);
      }
      if (step + 1 < kSteps) {
        ptx::wgmma_wait<1>();
      } else {
        ptx::wgmma_wait<0>();
      }
      ptx::pin(products[step % 2]);
      add(products[step % 2], factors, half_of(step), sum_[tile_of(step)]);
      if (step + 2 < kSteps) multiply(products[step % 2], x, weights, step + 2);
    }
  }
  __device__ static void add(const Products& products, const uint4 (&factors)[2], int half, float (&sum)[64]) {
#pragma unroll
    for (int i = 0; i < kHalfRows / 2; ++i) {
      const uint4& of_token = factors[i / 2 % 2];
      const int block = 2 * half + i / 16;
      const uint32_t bits = block == 0 ? of_token.x : block == 1 ? of_token.y : block == 2 ? of_token.z : of_token.w;
      float& to = sum[half * kHalfRows / 2 + i];
      to = fmaf(products[i], __uint_as_float(bits), to);
    }
  }

  // A scale for each row.
  __device__ void add_stage_by_rows(uint32_t scales) {
    const ptx::Descriptor x = x_of_stage();
    const ptx::Descriptor weights = weights_of_stage();
#pragma unroll 1
    for (int group = 0; group < Shape::kScaleGroups; ++group) {
#pragma unroll
      for (int step = 0; step < 2 * Shape::kTokenTiles; ++step) {
        Products products = {};
        ptx::wgmma_fence();
        ptx::wgmma_e4m3_m64n64k32(products, x.at(tile_of(step) * 64 * 128 + group * 32),
                                  weights.at(half_of(step) * kHalfRows * 128 + group * 32));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::pin(products);
        add_by_rows(products, scales, group, tile_of(step), half_of(step), sum_[tile_of(step)]);
      }
    }
  }
  __device__ void add_by_rows(const Products& products, uint32_t scales, int group, int tile, int half,
                              float (&sum)[64]) const {
    uint32_t of_token[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of_token[i] =
          byte_of(ptx::load_shared_word(scales + Shape::kTokenWords + 4 * (token_ + 64 * tile + 8 * i)), group);
    }
#pragma unroll
    for (int pair = 0; pair < kHalfRows / 8; ++pair) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = half * kHalfRows + 8 * pair + thread_ % 4 * 2 + i;
        const uint32_t of_row = byte_of(ptx::load_shared_word(scales + Shape::kRowWords + 4 * row), group);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& to = sum[half * kHalfRows / 2 + 4 * pair + 2 * k + i];
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

template <class Shape>
__device__ inline void multiply_codes(const LinearArgs& a, const Shared<Shape>& shared, int thread) {
  CodeMultiplier<Shape> multiplier(shared, thread);
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    multiplier.run(tile_place<Shape>(a, walk));
    ptx::forget(walk.tile);
    const TilePlace p = tile_place<Shape>(a, walk);
    if (a.splits > 1) {
      ptx::named_barrier<1, Shape::kMultiplierThreads>();  // all are done with the stages
      multiplier.write_sums(shared.cluster_sums());
      ptx::cluster_barrier();
      store_tokens<Shape, true>(a, p, shared.cluster_sums(), walk.rank(), 0, Shape::kTokens, thread);
      ptx::cluster_leave();
      return;
    }
    multiplier.store(a, p);
    if (p.first_token + Shape::kTokens >= a.tokens) store_padding<Shape>(a, p, thread / 32, Shape::kMultiplierWarps);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) e4m3_kernel(const __grid_constant__ LinearArgs a) {
  extern __shared__ uint8_t memory[];
  const Shared<Shape> shared(memory);
  ptx::let_next_begin();
  if (threadIdx.x == 0) shared.init_barriers(kProducerThreads);
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < Shape::kMultiplierThreads) {
    ptx::take_registers<Shape::kMultiplierRegisters>();
    ptx::wait_for_previous();
    multiply_codes(a, shared, thread);
  } else {
    ptx::give_registers<Shape::kProducerRegisters>();
    call_first_stages<Shape>(a, Shape::kStages * Shape::kColumns, thread - Shape::kMultiplierThreads);
    ptx::wait_for_previous();
    produce_codes(a, shared, thread - Shape::kMultiplierThreads);
    if (a.splits > 1) {  // both meetings of the multipliers, who alone have something to show
      ptx::cluster_leave();
      ptx::cluster_leave();
    }
  }
}

}  // namespace megamla::cuda::linear
