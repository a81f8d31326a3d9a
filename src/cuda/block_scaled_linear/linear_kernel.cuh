// One block: a tile of 128 or 256 weight rows times 8 .. 128 tokens over its share of the columns; then, if it shares
// no tile with other blocks, the next tile.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/inputs.cuh"
#include "cuda/block_scaled_linear/store_tile.cuh"
#include "cuda/block_scaled_linear/weights.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_registers.cuh"

namespace megamla::cuda::linear {

// Few tokens wait for memory alone. What the first stages do not hold of a tile's rows is then called to L2, each row
// at once: memory reads long runs faster than the 128 bytes of a stage.
template <class Shape>
__device__ inline void call_rows(const WeightRows& rows, const TilePlace& p, int thread) {
  constexpr int kFirst = Shape::kStages * Shape::kColumns;
  constexpr int kMost = 4096;
  static_assert(Shape::kRows == kProducerThreads);
  const int from = (p.begin + kFirst) * Shape::kWeightBytes;
  const int bytes = min(p.end * Shape::kWeightBytes - from, kMost);
  if (bytes > 0 && thread < rows.count) ptx::call_to_l2(rows.first + thread * rows.pitch + from, bytes);
}

// Weights of a stage are on their way as soon as the stage is free; x and scales, which pass through registers, follow
// one stage later.
template <class Shape, bool kFp8X>
__device__ inline void produce(const LinearArgs& a, const Shared<Shape>& shared, int thread) {
  RowCopies<Shape::kRows, Shape::kRowBytes> weights(thread);
  WeightScales<Shape> scales(thread);
  XUnits<Shape, kFp8X> x(thread);
  RingPlace<Shape> place;
  int loaded = -1;  // the stage whose x and scales are in registers
  const auto store = [&](int stage) {
    if (a.x_aligned) x.store(shared.x(stage));
    scales.store(shared.scales(stage));
    ptx::fence_async_proxy();
    ptx::mbarrier_arrive(shared.full(stage));
  };
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<Shape>(a, walk);
    const WeightRows rows = weight_rows<Shape>(a, p);
    weights.begin(rows.first, rows.pitch, rows.count, p.end * Shape::kWeightBytes);
    scales.begin(a, p);
    x.begin(a, p);
    int stages = 0;
    for (int column = p.begin; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
      weights.copy(column * Shape::kWeightBytes, shared.weights(place.stage));
      ptx::arrive_after_copies(shared.full(place.stage));
      if (loaded >= 0) store(loaded);
      scales.load(a, column);
      loaded = place.stage;
      if (a.x_aligned) {
        x.load(a, column);
      } else {
        x.carry_slowly(a, column, shared.x(place.stage));
      }
      place.advance();
      if constexpr (Shape::kBlocksPerSm == 2) {
        if (++stages == Shape::kStages) call_rows<Shape>(rows, p, thread);
      }
    }
  }
  if (loaded >= 0) store(loaded);
}

// Batches of kBatchColumns columns and 64 rows: while the tensor cores work on one, the lanes widen the next.
template <class Shape>
class Multiplier {
 public:
  __device__ Multiplier(const Shared<Shape>& shared, int thread)
      : shared_(shared), operands_(thread), thread_(thread) {}

  __device__ void run(const TilePlace& p) {
#pragma unroll
    for (auto& of_row_tile : sum_) {
#pragma unroll
      for (float& value : of_row_tile) value = 0;
    }
    uint32_t nan[Shape::kRowTiles][2] = {};
    int before = -1;  // the stage that the last batch on its way reads
#pragma unroll 1
    for (int column = p.begin; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared_.full(place_.stage), place_.parity);
      const uint32_t weights = shared_.weights(place_.stage);
      const ptx::Descriptor x(shared_.x(place_.stage), 0, 1024);
      uint32_t scales[Shape::kRowTiles][2];
      operands_.load_scales(shared_.scales(place_.stage), column, scales);
      uint32_t excess[Shape::kRowTiles][2];
      const bool beyond = operands_.split_scales(scales, excess);
      const auto load = [&](int i) { return operands_.load(weights, i % Shape::kRowTiles, i / Shape::kRowTiles); };
      Raw raw;
#pragma unroll
      for (int i = 0; i < kBatches; ++i) {
        const int batch = i / Shape::kRowTiles;
        const int row_tile = i % Shape::kRowTiles;
        Operands& a = a_[i % 2];
        if (i == 0 || !kLoadAhead) raw = load(i);
        operands_.widen(raw, scales[row_tile], batch, a, nan[row_tile]);
        if (beyond) operands_.widen_more(excess[row_tile], batch, a);
        if (kLoadAhead && i + 1 < kBatches) raw = load(i + 1);
        multiply(a, x, batch, sum_[row_tile]);
        ptx::wgmma_wait<1>();
        if (i == 0 && before >= 0) release(before);
      }
      before = place_.stage;
      place_.advance();
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (auto& of_row_tile : sum_) ptx::pin(of_row_tile);
    if (before >= 0) release(before);
    if (Shape::kWeightBytes == 1) spoil_rows(nan);
  }

  // Tokens first_token .. + kCount of the tile, to [token][row]; kCount divides kTokens.
  __device__ void write_sums(float* sums, int first_token, int count) const {
    const int lane = thread_ % 32;
    const int row = thread_ / 128 * 64 * Shape::kRowTiles + thread_ / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int tile = 0; tile < Shape::kTokens / 8; ++tile) {
      const int token = 8 * tile - first_token;
      if (token < 0 || token >= count) continue;
      float* to = sums + (token + lane % 4 * 2) * Shape::kSumPitch + row;
#pragma unroll
      for (int i = 0; i < 4 * Shape::kRowTiles; ++i) {
        to[i % 2 * Shape::kSumPitch + i / 2 % 2 * 8 + i / 4 * 64] = sum_[i / 4][4 * tile + i % 4];
      }
    }
  }

 private:
  using Raw = typename WeightOperands<Shape>::Raw;
  static constexpr int kBatches = Shape::kColumns / kBatchColumns * Shape::kRowTiles;
  static_assert(kBatches % 2 == 0);
  // The registers of BF16 weights are themselves operands: those of the batch before last must be free.
  static constexpr bool kLoadAhead = Shape::kWeightBytes == 1;

  __device__ static void multiply(const Operands& a, const ptx::Descriptor& x, int batch,
                                  float (&sum)[Shape::kTokens / 2]) {
    const uint32_t first = batch / 2 * Shape::kTokens * 128 + batch % 2 * 64;
    ptx::wgmma_fence();
    ptx::wgmma_registers<Shape::kTokens>(sum, a[0], x.at(first));
    ptx::wgmma_registers<Shape::kTokens>(sum, a[1], x.at(first + 32));
    ptx::wgmma_commit();
  }
  // A NaN code makes NaN of all sums of its row.
  __device__ void spoil_rows(uint32_t (&nan)[Shape::kRowTiles][2]) {
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
      uint32_t& bits = nan[i / 2][i % 2];
      bits |= __shfl_xor_sync(~0U, bits, 1);
      bits |= __shfl_xor_sync(~0U, bits, 2);
      if ((bits & 0x80808080U) == 0) continue;
#pragma unroll
      for (int k = 0; k < Shape::kTokens / 4; ++k) {
        sum_[i / 2][k / 2 * 4 + i % 2 * 2 + k % 2] = __uint_as_float(0x7fc00000U);
      }
    }
  }
  __device__ void release(int stage) const {
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(shared_.empty(stage));
  }

  const Shared<Shape>& shared_;
  WeightOperands<Shape> operands_;
  int thread_;
  RingPlace<Shape> place_;
  Operands a_[2];
  float sum_[Shape::kRowTiles][Shape::kTokens / 2];
};

__device__ inline void meet_multipliers() { ptx::named_barrier<1, kMultiplierThreads>(); }

template <class Shape>
__device__ inline void multiply_and_store(const LinearArgs& a, const Shared<Shape>& shared, int thread) {
  Multiplier<Shape> multiplier(shared, thread);
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<Shape>(a, walk);
    multiplier.run(p);
    meet_multipliers();  // all are done with the stages, and with the last tile's sums
    if (a.splits > 1) {
      multiplier.write_sums(shared.cluster_sums(), 0, Shape::kTokens);
      ptx::cluster_barrier();
      store_tokens<Shape>(a, p, shared.cluster_sums(), walk.rank, 0, Shape::kTokens, thread);
      ptx::cluster_leave();
      return;
    }
#pragma unroll 1
    for (int first = 0; first < Shape::kTokens; first += Shape::kRoundTokens) {
      if (first > 0) meet_multipliers();
      multiplier.write_sums(shared.round_sums(), first, Shape::kRoundTokens);
      meet_multipliers();
      store_tokens<Shape>(a, p, shared.round_sums(), 0, first, Shape::kRoundTokens, thread);
    }
  }
}

template <class Shape, bool kFp8X>
__global__ void __launch_bounds__(kThreads, Shape::kBlocksPerSm) linear_kernel(const __grid_constant__ LinearArgs a) {
  extern __shared__ uint8_t memory[];
  const Shared<Shape> shared(memory);
  ptx::let_next_begin();
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kMultiplierThreads) {
    ptx::take_registers<Shape::kMultiplierRegisters>();
    ptx::wait_for_previous();
    multiply_and_store(a, shared, thread);
  } else {
    ptx::give_registers<Shape::kProducerRegisters>();
    call_first_stages<Shape>(a, Shape::kStages * Shape::kColumns, thread - kMultiplierThreads);
    ptx::wait_for_previous();
    produce<Shape, kFp8X>(a, shared, thread - kMultiplierThreads);
    if (a.splits > 1) {  // both meetings of the multipliers, who alone have something to show
      ptx::cluster_leave();
      ptx::cluster_leave();
    }
  }
}

}  // namespace megamla::cuda::linear
