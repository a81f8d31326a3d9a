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

// Nothing passes through registers: bf16 x and words of scales that can be copied. Stages follow one another as fast as
// they are free.
template <class Shape>
__device__ inline void produce_copies(const LinearArgs& a, const Shared<Shape>& shared, int thread) {
  RowCopies<Shape::kRows, Shape::kRowBytes> weights(thread);
  WeightScales<Shape> scales(thread);
  XCopies<Shape> x(thread);
  RingPlace<Shape> place;
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<Shape>(a, walk);
    const WeightRows rows = weight_rows<Shape>(a, p);
    weights.begin(rows.first, rows.pitch, rows.count, p.end * Shape::kWeightBytes);
    scales.begin(a, p);
    x.begin(a, p);
    int stages = 0;
#pragma unroll 1
    for (int column = p.begin; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
      weights.copy(column * Shape::kWeightBytes, shared.weights(place.stage));
      x.copy(column, shared.x(place.stage));
      if (Shape::kColumns == kSplitColumns || column % kSplitColumns == 0) {
        scales.copy(column, shared.scales(place.stage));
      }
      ptx::arrive_after_copies(shared.full(place.stage));
      place.advance();
      if constexpr (Shape::kBlocksPerSm == 2) {
        if (++stages == Shape::kStages) call_rows<Shape>(rows, p, thread);
      }
    }
  }
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
  const bool x_in_registers = kFp8X && a.x_aligned;
  const auto store = [&](int stage) {
    if (x_in_registers) x.store(shared.x(stage));
    scales.store(shared.scales(stage));
    ptx::mbarrier_arrive(shared.full(stage));
  };
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    const TilePlace p = tile_place<Shape>(a, walk);
    const WeightRows rows = weight_rows<Shape>(a, p);
    weights.begin(rows.first, rows.pitch, rows.count, p.end * Shape::kWeightBytes);
    scales.begin(a, p);
    x.begin(a, p);
    int stages = 0;
#pragma unroll 1
    for (int column = p.begin; column < p.end; column += Shape::kColumns) {
      ptx::mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
      weights.copy(column * Shape::kWeightBytes, shared.weights(place.stage));
      ptx::arrive_after_copies(shared.full(place.stage));
      if (loaded >= 0) store(loaded);
      scales.load(a, column);
      loaded = place.stage;
      if (x_in_registers) {
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

// Batches of kBatchColumns columns: while the tensor cores work on one, the lanes widen the next.
template <class Shape, bool kFp8X>
class Multiplier {
 public:
  __device__ Multiplier(const Shared<Shape>& shared, int thread)
      : shared_(shared), operands_(thread), thread_(thread) {}

  __device__ void run(int begin, int end) {
#pragma unroll
    for (float& value : sum_) value = 0;
    NanWatch nan[2];
    int before = -1;  // the stage that the last batch on its way reads
#pragma unroll 1
    for (int column = begin; column < end; column += kSplitColumns) {
      uint32_t scales[2];
      bool beyond = false;
      const int first = place_.stage;  // it has the scales of all parts
#pragma unroll
      for (int part = 0; part < kSplitColumns / Shape::kColumns; ++part) {
        if (part > 0 && column + part * Shape::kColumns >= end) break;
        ptx::mbarrier_wait(shared_.full(place_.stage), place_.parity);
        ptx::fence_async_proxy();  // here, since in a producer it would wait for all copies that are on their way
        if (part == 0) {
          operands_.load_scales(shared_.scales(place_.stage), scales);
          beyond = operands_.limit_scales(scales);
        }
        const uint32_t weights = shared_.weights(place_.stage);
        const ptx::Descriptor x(shared_.x(place_.stage), 0, 1024);
        Raw raw;
#pragma unroll
        for (int i = 0; i < kBatches; ++i) {
          const int group = part * kBatches + i;
          Operands& a = a_[i % kOperands];
          if (kOperands == 1) ptx::wgmma_wait<0>();
          if (i == 0 || !kLoadAhead) operands_.load(weights, i, raw);
          operands_.widen(raw, scales, group, a, nan);
          if (beyond) operands_.widen_more(shared_.scales(first), group, a);
          if (kLoadAhead && i + 1 < kBatches) operands_.load(weights, i + 1, raw);
          multiply(a, x, i);
          if (kOperands == 2) ptx::wgmma_wait<1>();
          const bool scales_wanted = part > 0 && beyond;  // of the stage before
          if (i == 0 && before >= 0 && !scales_wanted) release(before);
          if (i == kBatches - 1 && scales_wanted) release(before);
        }
        before = place_.stage;
        place_.advance();
      }
    }
    ptx::wgmma_wait<0>();
    ptx::pin(sum_);
    if (before >= 0) release(before);
    if (Shape::kWeightBytes == 1) spoil_rows(nan);
  }

  // Tokens first_token .. + kCount of the tile, to [token][row]; kCount divides kTokens.
  __device__ void write_sums(float* sums, int first_token, int count) const {
    const int lane = thread_ % 32;
    const int row = thread_ / 32 * 16 + lane / 4;
#pragma unroll
    for (int tile = 0; tile < Shape::kTokens / 8; ++tile) {
      const int token = 8 * tile - first_token;
      if (token < 0 || token >= count) continue;
      float* to = sums + (token + lane % 4 * 2) * Shape::kSumPitch + row;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i % 2 * Shape::kSumPitch + i / 2 * 8] = sum_[4 * tile + i];
    }
  }

  // As bf16 to y, 32 tokens at a time through the warp's own part of shared memory.
  __device__ void store(const LinearArgs& a, const TilePlace& p) const {
    const int lane = thread_ % 32;
    const uint32_t turn = ptx::shared_address(shared_.round_sums()) + thread_ / 32 * Shape::kWarpBytes;
    const uint32_t to = turn + (lane / 16 * 8 + lane % 8) * Shape::kWarpPitch + lane / 8 % 2 * 16;
    const uint32_t from = turn + lane / 4 * Shape::kWarpPitch + lane % 4 * 8;
    const int64_t row = p.first_row + thread_ / 32 * 16 + lane % 4 * kLaneRows;
    const auto tokens = static_cast<int>(min(a.tokens - p.first_token, int64_t{Shape::kTokens})) - lane / 4;
    const int64_t rows = a.out - row;
    format::Bf16* y =
        static_cast<format::Bf16*>(a.y) + (p.first_token + lane / 4) * a.y_token + p.group * a.y_group + row;
    const int64_t step = 8 * a.y_token;
#pragma unroll
    for (int first = 0; first < Shape::kTokens; first += 32) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // 16 tokens: rows g and g + 8 of eight of them, then of the others
        const float* sums = sum_ + first / 2 + 8 * i;
        const uint32_t pairs[4] = {bf16x2_round(sums[0], sums[1]), bf16x2_round(sums[2], sums[3]),
                                   bf16x2_round(sums[4], sums[5]), bf16x2_round(sums[6], sums[7])};
        ptx::store_matrices_transposed(to + 16 * i * Shape::kWarpPitch, pairs);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 four = ptx::load_shared_2(from + 8 * i * Shape::kWarpPitch);
        if (first + 8 * i < tokens) store_bf16(y, four, rows, a.y_aligned);
        y += step;
      }
    }
  }

 private:
  using Weights = WeightOperands<Shape, kFp8X>;
  using Raw = typename Weights::Raw;
  static constexpr int kBatches = Shape::kColumns / kBatchColumns;
  static_assert(kBatches % 2 == 0);
  static constexpr int kOperands = Shape::kWarpgroups == 2 ? 2 : 1;
  // The registers of BF16 weights are themselves operands: those of the batch before last must be free.
  static constexpr bool kLoadAhead = Shape::kWeightBytes == 1;

  __device__ void multiply(const Operands& a, const ptx::Descriptor& x, int batch) {
    const uint32_t first = batch / 2 * Shape::kTokens * 128 + batch % 2 * 64;
    ptx::wgmma_fence();
    ptx::wgmma_registers<Shape::kTokens>(sum_, a[0], x.at(first));
    ptx::wgmma_registers<Shape::kTokens>(sum_, a[1], x.at(first + 32));
    ptx::wgmma_commit();
  }
  // A NaN code makes NaN of all sums of its row.
  __device__ void spoil_rows(const NanWatch (&nan)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t seen = nan[i].seen();
      seen |= __shfl_xor_sync(~0U, seen, 1);
      seen |= __shfl_xor_sync(~0U, seen, 2);
      if (seen == 0) continue;
#pragma unroll
      for (int k = 0; k < Shape::kTokens / 4; ++k) {
        sum_[k / 2 * 4 + i * 2 + k % 2] = __uint_as_float(0x7fc00000U);
      }
    }
  }
  __device__ void release(int stage) const {
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(shared_.empty(stage));
  }

  const Shared<Shape>& shared_;
  Weights operands_;
  int thread_;
  RingPlace<Shape> place_;
  Operands a_[kOperands];
  float sum_[Shape::kTokens / 2];
};

template <class Shape>
__device__ inline void meet_multipliers() {
  ptx::named_barrier<1, Shape::kMultiplierThreads>();
}

template <class Shape, bool kFp8X>
__device__ inline void multiply_and_store(const LinearArgs& a, const Shared<Shape>& shared, int thread) {
  Multiplier<Shape, kFp8X> multiplier(shared, thread);
  for (TileWalk walk(a); walk.more(); walk.advance()) {
    {
      const TilePlace p = tile_place<Shape>(a, walk);
      multiplier.run(p.begin, p.end);
    }
    ptx::forget(walk.tile);  // nothing of the place takes registers meanwhile
    const TilePlace p = tile_place<Shape>(a, walk);
    if (a.splits > 1) {
      meet_multipliers<Shape>();  // all are done with the stages
      multiplier.write_sums(shared.cluster_sums(), 0, Shape::kTokens);
      ptx::cluster_barrier();
      store_tokens<Shape, true>(a, p, shared.cluster_sums(), walk.rank(), 0, Shape::kTokens, thread);
      ptx::cluster_leave();
      return;
    }
    if constexpr (Shape::kWarpgroups == 4) {
      multiplier.store(a, p);
    } else {
#pragma unroll 1
      for (int first = 0; first < Shape::kTokens; first += Shape::kRoundTokens) {
        meet_multipliers<Shape>();  // the sums of the last round are read
        multiplier.write_sums(shared.round_sums(), first, Shape::kRoundTokens);
        meet_multipliers<Shape>();
        store_tokens<Shape, false>(a, p, shared.round_sums(), 0, first, Shape::kRoundTokens, thread);
      }
    }
  }
}

template <class Shape, bool kFp8X>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    linear_kernel(const __grid_constant__ LinearArgs a) {
  extern __shared__ uint8_t memory[];
  const Shared<Shape> shared(memory);
  const bool copies = !kFp8X && only_copies(a);
  ptx::let_next_begin();
  if (threadIdx.x == 0) shared.init_barriers((copies ? 1 : 2) * kProducerThreads);
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < Shape::kMultiplierThreads) {
    ptx::take_registers<Shape::kMultiplierRegisters>();
    ptx::wait_for_previous();
    multiply_and_store<Shape, kFp8X>(a, shared, thread);
  } else {
    ptx::give_registers<Shape::kProducerRegisters>();
    const int producer = thread - Shape::kMultiplierThreads;
    call_first_stages<Shape>(a, Shape::kStages * Shape::kColumns, producer);
    ptx::wait_for_previous();
    if (copies) {
      if constexpr (!kFp8X) produce_copies<Shape>(a, shared, producer);
    } else {
      if constexpr (Shape::kWarpgroups == 2) produce<Shape, kFp8X>(a, shared, producer);
    }
    if (a.splits > 1) {  // both meetings of the multipliers, who alone have something to show
      ptx::cluster_leave();
      ptx::cluster_leave();
    }
  }
}

}  // namespace megamla::cuda::linear
