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
    // Rows beyond the last read the last one's.
    const auto row_of = [&](int i) {
      const int64_t row = p.group * a.out + min(p.first_row + thread_ + i * kProducerThreads, a.out - 1);
      return row >> a.rows_per_scale_log2;
    };
    from_ = a.weight_scale + row_of(0) * (a.in / 32);
    second_ = static_cast<uint32_t>(row_of(1) - row_of(0)) * static_cast<uint32_t>(a.in / 32);
  }
  // Aligned ones, past the registers.
  __device__ void copy(int column, uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      ptx::copy_4_async(stage + 4 * (thread_ + i * kProducerThreads), from(i) + column / 128 * 4, true);
    }
  }
  __device__ void load(const LinearArgs& a, int column) {
    const int first = column / 128 * 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (a.weight_scale_aligned) {
        words_[i] = __ldg(reinterpret_cast<const uint32_t*>(from(i) + first));
        continue;
      }
      words_[i] = 0;
      for (int k = 0; k < 4 && first + k < a.in / 32; ++k) {
        words_[i] |= static_cast<uint32_t>(__ldg(from(i) + first + k)) << (8 * k);
      }
    }
  }
  __device__ void store(uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) ptx::store_shared(stage + 4 * (thread_ + i * kProducerThreads), words_[i]);
  }

 private:
  __device__ const uint8_t* from(int i) const { return i == 0 ? from_ : from_ + second_; }

  int thread_;
  uint32_t second_;  // bytes from one row's scales to the other's
  const uint8_t* from_;
  uint32_t words_[kWords == 0 ? 1 : kWords];
};

// A lane's operands of 64 rows by kBatchColumns columns: two steps of 16 columns, as wgmma_registers takes them.
using Operands = uint32_t[2][4];

// A multiplier lane's view of the weights in a stage. wgmma asks a lane for columns 2t, 2t+1, 2t+8 and 2t+9 of 16
// (t = lane % 4). kInTurn: it gets 4t .. 4t+3, which ldmatrix brings, and x lies in the order that this makes of it
// (inputs.cuh). Otherwise x lies as in memory; of FP8 weights a lane loads the words that hold its pairs.
template <class Shape, bool kInTurn>
class WeightOperands {
  static constexpr bool kWords = Shape::kWeightBytes == 1 && !kInTurn;
  static constexpr int kRawWords = kWords ? 8 : 4 * Shape::kWeightBytes;

 public:
  using Raw = uint32_t[kRawWords];

  __device__ explicit WeightOperands(int thread) {
    const int lane = thread % 32;
    const int warp_row = thread / 32 * 16;
    if constexpr (kWords) {
      const int row = warp_row + lane / 4;
      granules_ = row * Shape::kRowBytes + (granule_turn<Shape::kRowBytes>(row) << 4) + lane % 4 / 2 * 4;
      selector_ = pair_selector(lane % 2);
    } else {
      // ldmatrix: lanes 8i .. 8i+7 say where the rows of matrix i lie; rows 0-7 and 8-15, then the next granule.
      const int row = warp_row + lane % 16;
      granules_ = row * Shape::kRowBytes + ((lane / 16 ^ granule_turn<Shape::kRowBytes>(row)) << 4);
    }
    scale_ = 4 * (warp_row + lane / 4);
  }

  // The scales of rows g and g + 8, of 128 columns.
  __device__ void load_scales(uint32_t stage, uint32_t (&scales)[2]) const {
    if constexpr (Shape::kWeightBytes == 1) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[i] = ptx::load_shared_word(stage + scale_ + i * 32);
    }
  }

  // What lies in shared memory for a batch. By ldmatrix: of FP8 weights rows g and g + 8 of the first 16 columns, then
  // of the others. By words: likewise, each time the words of the first and the second pair.
  __device__ void load(uint32_t stage, int batch, Raw& raw) const {
    const uint32_t from = stage + granules_;
    if constexpr (kWords) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        raw[i] =
            ptx::load_shared_word((from ^ (2 * batch + i / 4) << 4) + i / 2 % 2 * 8 * Shape::kRowBytes + i % 2 * 8);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Shape::kWeightBytes; ++i) {
        uint32_t words[4];
        ptx::load_matrices(from ^ (2 * (batch * Shape::kWeightBytes + i)) << 4, words);
#pragma unroll
        for (int k = 0; k < 4; ++k) raw[4 * i + k] = words[k];
      }
    }
  }

  // Scales beyond the largest that one factor takes become that one, if there are any; widen_more does the rest.
  __device__ static bool limit_scales(uint32_t (&scales)[2]) {
    if constexpr (Shape::kWeightBytes == 2) return false;
    const uint32_t beyond = bytes_beyond_largest(scales[0]) | bytes_beyond_largest(scales[1]);
    if (__builtin_expect(static_cast<long>(!__any_sync(~0U, beyond != 0)), 1L) != 0) return false;
#pragma unroll
    for (uint32_t& word : scales) word = __vminu4(word, 0x01010101U * kLargestScale);
    return true;
  }

  // `group`: of the four that the scales are of. NaN codes are widened to 480; `nan` of rows g and g + 8 sees them.
  __device__ void widen(const Raw& raw, const uint32_t (&scales)[2], int group, Operands& a, NanWatch (&nan)[2]) const {
    if constexpr (Shape::kWeightBytes == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = raw[i];
      return;
    }
    const uint32_t factor[2] = {widening_factor(scales[0], group), widening_factor(scales[1], group)};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = i % 2;
      const int pair = i / 2 % 2;
      const uint32_t placed = kWords ? place_pair(raw[i / 4 * 4 + row * 2 + pair], selector_)
                                     : place_pair(raw[i / 4 * 2 + row], pair_selector(pair));
      nan[row].add(placed);
      a[i / 4][i % 4] = bf16x2_multiply(placed, factor[row]);
    }
  }
  __device__ void widen_more(uint32_t stage, int group, Operands& a) const {
    uint32_t factor[2] = {};
    load_scales(stage, factor);
#pragma unroll
    for (uint32_t& f : factor) f = excess_factor(f, group);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = bf16x2_multiply(a[i / 4][i % 4], factor[i % 2]);
  }

 private:
  uint32_t granules_, scale_, selector_;
};

}  // namespace megamla::cuda::linear
