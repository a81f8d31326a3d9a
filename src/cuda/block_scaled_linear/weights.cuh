// Weights on their way from memory to the registers that wgmma multiplies from. They stay as they are in memory until
// a multiplier's lane widens them.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/row_copies.cuh"
#include "cuda/block_scaled_linear/tile_order.cuh"
#include "cuda/block_scaled_linear/widen.cuh"
#include "cuda/ptx/matrix_load.cuh"

namespace megamla::cuda::linear {

// Scales of FP8 weights: per row the word that holds those of 128 columns. A producer thread has one or two rows.
template <class Shape>
class WeightScales {
  static constexpr int kWords = Shape::kWeightBytes == 1 ? Shape::kRows / kProducerThreads : 0;

 public:
  __device__ explicit WeightScales(int thread) : thread_(thread) {}
  __device__ void begin(const LinearArgs& a, const TilePlace& p) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      // Rows beyond the last read the last one's.
      const int64_t row = p.group * a.out + min(p.first_row + thread_ + i * kProducerThreads, a.out - 1);
      from_[i] = a.weight_scale + (row >> a.rows_per_scale_log2) * (a.in / 32);
    }
  }
  __device__ void load(const LinearArgs& a, int column) {
    const int first = column / 128 * 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (a.weight_scale_aligned) {
        words_[i] = __ldg(reinterpret_cast<const uint32_t*>(from_[i] + first));
        continue;
      }
      words_[i] = 0;
      for (int k = 0; k < 4 && first + k < a.in / 32; ++k) {
        words_[i] |= static_cast<uint32_t>(__ldg(from_[i] + first + k)) << (8 * k);
      }
    }
  }
  __device__ void store(uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) ptx::store_shared(stage + 4 * (thread_ + i * kProducerThreads), words_[i]);
  }

 private:
  int thread_;
  const uint8_t* from_[kWords == 0 ? 1 : kWords];
  uint32_t words_[kWords == 0 ? 1 : kWords];
};

// A lane's operands of 64 rows by kBatchColumns columns: two steps of 16 columns, as wgmma_registers takes them.
using Operands = uint32_t[2][4];

// A multiplier lane's view of the weights in a stage.
template <class Shape>
class WeightOperands {
 public:
  struct Raw {
    uint32_t words[Shape::kWeightBytes][4];
  };

  __device__ explicit WeightOperands(int thread) {
    const int lane = thread % 32;
    const int warp_row = thread / 128 * 64 * Shape::kRowTiles + thread / 32 % 4 * 16;
    // ldmatrix: lanes 8i .. 8i+7 say where the rows of matrix i lie; rows 0-7 and 8-15, then the next granule.
    const int row = warp_row + lane % 16;
    granules_ = row * Shape::kRowBytes + ((lane / 16 ^ granule_turn<Shape::kRowBytes>(row)) << 4);
    scale_ = 4 * (warp_row + lane / 4);
  }

  // The scales of a tile of 64 rows, those of rows g and g + 8 in turn, from that of column `column` on.
  __device__ void load_scales(uint32_t stage, int column, uint32_t (&scales)[Shape::kRowTiles][2]) const {
    if constexpr (Shape::kWeightBytes == 1) {
      const int shift = Shape::kColumns == 128 ? 0 : column % 128 / 32 * 8;
#pragma unroll
      for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
        scales[i / 2][i % 2] = ptx::load_shared_word(stage + scale_ + i / 2 * 256 + i % 2 * 32) >> shift;
      }
    }
  }

  // What lies in shared memory for a batch: of FP8 weights rows g and g + 8 of the first 16 columns, then of the
  // others.
  __device__ Raw load(uint32_t stage, int row_tile, int batch) const {
    Raw raw;
    const uint32_t from = stage + row_tile * 64 * Shape::kRowBytes;
#pragma unroll
    for (int i = 0; i < Shape::kWeightBytes; ++i) {
      ptx::load_matrices(from + (granules_ ^ (2 * (batch * Shape::kWeightBytes + i)) << 4), raw.words[i]);
    }
    return raw;
  }

  // Scales beyond the largest that one factor takes: a second factor for them, the first one at its largest.
  __device__ static bool split_scales(uint32_t (&scales)[Shape::kRowTiles][2],
                                      uint32_t (&excess)[Shape::kRowTiles][2]) {
    if constexpr (Shape::kWeightBytes == 2) return false;
    uint32_t beyond = 0;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) beyond |= bytes_beyond_largest(scales[i / 2][i % 2]);
    if (__builtin_expect(static_cast<long>(!__any_sync(~0U, beyond != 0)), 1L) != 0) return false;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
      uint32_t& word = scales[i / 2][i % 2];
      const uint32_t most = __vminu4(word, 0x01010101U * kLargestScale);
      excess[i / 2][i % 2] = word - most;  // of no byte below 0
      word = most;
    }
    return true;
  }

  // Notes codes that are NaN in `nan`, of rows g and g + 8, in the highest bits of its bytes: they are widened to 480.
  __device__ static void widen(const Raw& raw, const uint32_t (&scales)[2], int batch, Operands& a,
                               uint32_t (&nan)[2]) {
    if constexpr (Shape::kWeightBytes == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = raw.words[i / 4][i % 4];
      return;
    }
    const uint32_t(&codes)[4] = raw.words[0];
#pragma unroll
    for (int i = 0; i < 2; ++i) nan[i] |= nan_bits(codes[i]) | nan_bits(codes[2 + i]);
    const uint32_t factor[2] = {widening_factor(scales[0], batch), widening_factor(scales[1], batch)};
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = widen_pair(codes[i / 4 * 2 + i % 2], i / 2 % 2, factor[i % 2]);
  }
  __device__ static void widen_more(const uint32_t (&excess)[2], int batch, Operands& a) {
    const uint32_t factor[2] = {excess_factor(excess[0], batch), excess_factor(excess[1], batch)};
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = bf16x2_multiply(a[i / 4][i % 4], factor[i % 2]);
  }

 private:
  uint32_t granules_, scale_;
};

}  // namespace megamla::cuda::linear
