// x on its way from memory to shared memory: widened to bf16, K-major in the 128-byte swizzle of wgmma.
//
// bf16 x lies as in memory, so that 16 bytes can be copied at once. FP8 x passes through registers, and may as well be
// put in the order in which ldmatrix brings FP8 weights: of 16 columns, lane t of four has columns 4t .. 4t+3, which
// the product takes for k = 2t, 2t+1, 2t+8, 2t+9. So of each 16 columns first come the pairs 0, 2, 4, 6, then the pairs
// 1, 3, 5, 7.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/row_copies.cuh"
#include "cuda/block_scaled_linear/shared.cuh"
#include "cuda/block_scaled_linear/tile_order.cuh"
#include "cuda/block_scaled_linear/widen.cuh"
#include "format/chunked.hpp"

namespace megamla::cuda::linear {

// Bytes from the first scale of x to that of a token, and to that of a column: in both layouts they add up.
__device__ inline int64_t x_scale_of_token(const LinearArgs& a, int64_t token, int64_t group) {
  if (a.x_scale_packed) return 4 * (token * a.x_scale_token + group * a.x_scale_group);
  return format::f8_128x4_index(a.in / 32, token, 0);
}
__device__ inline int64_t x_scale_of_column(const LinearArgs& a, int column) {
  if (!a.x_scale_packed) return format::f8_128x4_index(a.in / 32, 0, column / 32);
  const format::PackedScale at = format::packed_scale(column / 32);
  return 4 * at.word * a.x_scale_word + at.shift / 8;  // little endian
}

// What a thread loads at once: 16 bytes of a token. `row` is the first granule of 16 bytes of the token's row of a
// swizzle block, before the swizzle; `turn` is what the swizzle does to granules of this row.
template <bool kFp8, bool kInTurn>
struct XUnit;

template <>
struct XUnit<false, false> {
  static constexpr int kBytes = 2;
  static constexpr int kColumns = 8;
  uint4 pairs;

  __device__ void load(const uint8_t* from, const uint8_t*, bool there) {
    pairs = there ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
  }
  __device__ void load_bytes(const uint8_t* from, const uint8_t*, bool there) {
    uint32_t words[4] = {};
    const auto* elements = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (there) words[i / 2] |= static_cast<uint32_t>(__ldg(elements + i)) << (16 * (i % 2));
    }
    pairs = {words[0], words[1], words[2], words[3]};
  }
  __device__ void store(uint32_t row, int unit, int turn) const {
    ptx::store_shared(row + ((unit ^ turn) << 4), pairs);
  }
};

template <bool kInTurn>
struct XUnit<true, kInTurn> {
  static constexpr int kBytes = 1;
  static constexpr int kColumns = 16;
  uint4 codes;
  uint32_t scale;

  __device__ void load(const uint8_t* from, const uint8_t* scale_from, bool there) {
    codes = there ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
    scale = there ? __ldg(scale_from) : 127;
  }
  __device__ void load_bytes(const uint8_t* from, const uint8_t* scale_from, bool there) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (there) words[i / 4] |= static_cast<uint32_t>(__ldg(from + i)) << (8 * (i % 4));
    }
    codes = {words[0], words[1], words[2], words[3]};
    scale = there ? __ldg(scale_from) : 127;
  }
  __device__ void store(uint32_t row, int unit, int turn) const {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    const uint32_t factor = widening_factor(min(scale, kLargestScale));
    bool rare = scale > kLargestScale;
    uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) pairs[i] = widen_pair(words[i / 2], i % 2, factor);
#pragma unroll
    for (const uint32_t word : words) rare |= has_e4m3_nan(word);
    if (rare) {
#pragma unroll
      for (int i = 0; i < 8; ++i) pairs[i] = widen_rare_pair(words[i / 2], i % 2, scale);
    }
    const uint32_t first = row + (((2 * unit) ^ turn) << 4);
    if constexpr (kInTurn) {
      ptx::store_shared(first, uint4{pairs[0], pairs[2], pairs[4], pairs[6]});
      ptx::store_shared(first ^ 16, uint4{pairs[1], pairs[3], pairs[5], pairs[7]});
    } else {
      ptx::store_shared(first, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
      ptx::store_shared(first ^ 16, uint4{pairs[4], pairs[5], pairs[6], pairs[7]});
    }
  }
};

// The units of a stage that a producer thread carries. Neighbouring threads have neighbouring units of a token, then
// the next token, then the next swizzle block.
template <class Shape, bool kFp8>
class XUnits {
  using Unit = XUnit<kFp8, kFp8 && Shape::kWeightBytes == 1>;
  static constexpr int kTokenUnits = kSwizzleColumns / Unit::kColumns;  // of a swizzle block
  static constexpr int kRows = Shape::kTokens * Shape::kSwizzleBlocks;
  static constexpr int kPassRows = kProducerThreads / kTokenUnits;
  static constexpr int kPasses = (kRows + kPassRows - 1) / kPassRows;
  static_assert(kPassRows % Shape::kTokens == 0 || Shape::kTokens % kPassRows == 0);

 public:
  __device__ explicit XUnits(int thread) {
    const int row = thread / kTokenUnits;
    unit_ = thread % kTokenUnits;
    token_ = row % Shape::kTokens;
    block_ = row / Shape::kTokens;
    row_offset_ = row * 128;
  }
  __device__ void begin(const LinearArgs& a, const TilePlace& p) {
    first_token_ = p.first_token;
    tokens_ = static_cast<int>(min(a.tokens - p.first_token, int64_t{Shape::kTokens}));
    end_ = p.end;
    group_ = static_cast<int>(p.group);
    x_ = static_cast<const uint8_t*>(a.x) +
         ((p.first_token + token_) * a.x_token + p.group * a.x_group + first_column()) * Unit::kBytes;
  }
  __device__ void load(const LinearArgs& a, int column) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) units_[i].load(from(a, column, i), scale(a, column, i), there(column, i));
  }
  __device__ void store(uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (in_stage()) {
        units_[i].store(stage + row_offset_ + i * kPassRows * 128, unit_, token_ % 8);
      }
    }
  }
  // One unit at a time, straight to the stage; x that begins anywhere even element by element.
  __device__ void carry_slowly(const LinearArgs& a, int column, uint32_t stage) const {
    if (!in_stage()) return;
#pragma unroll 1
    for (int i = 0; i < kPasses; ++i) {
      Unit unit;
      if (a.x_aligned) {
        unit.load(from(a, column, i), scale(a, column, i), there(column, i));
      } else {
        unit.load_bytes(from(a, column, i), scale(a, column, i), there(column, i));
      }
      unit.store(stage + row_offset_ + i * kPassRows * 128, unit_, token_ % 8);
    }
  }

 private:
  __device__ int first_column() const { return block_ * kSwizzleColumns + unit_ * Unit::kColumns; }
  // Small stages have fewer units than there are producers.
  __device__ bool in_stage() const { return kPassRows <= kRows || block_ < Shape::kSwizzleBlocks; }
  // From a thread's first unit to that of pass i.
  __device__ static constexpr int tokens_on(int i) { return i * kPassRows % Shape::kTokens; }
  __device__ static constexpr int columns_on(int i) { return i * kPassRows / Shape::kTokens * kSwizzleColumns; }
  __device__ bool there(int column, int i) const {
    return token_ + tokens_on(i) < tokens_ && column + columns_on(i) + first_column() < end_;
  }
  __device__ const uint8_t* from(const LinearArgs& a, int column, int i) const {
    return x_ + (tokens_on(i) * a.x_token + column + columns_on(i)) * Unit::kBytes;
  }
  __device__ const uint8_t* scale(const LinearArgs& a, int column, int i) const {
    if constexpr (!kFp8) return nullptr;
    return static_cast<const uint8_t*>(a.x_scale) + x_scale_of_token(a, first_token_ + token_ + tokens_on(i), group_) +
           x_scale_of_column(a, column + columns_on(i) + first_column());
  }

  Unit units_[kPasses];
  const uint8_t* x_;  // of the thread's first unit, at column 0 of the row
  int64_t first_token_;
  int unit_, token_, block_, tokens_, end_, group_;
  uint32_t row_offset_;
};

// bf16 x that begins at multiples of 16 bytes, past the registers.
template <class Shape>
class XCopies {
 public:
  __device__ explicit XCopies(int thread) : rows_(thread) {}
  __device__ void begin(const LinearArgs& a, const TilePlace& p) {
    rows_.begin(static_cast<const uint8_t*>(a.x) + 2 * (p.first_token * a.x_token + p.group * a.x_group), 2 * a.x_token,
                a.tokens - p.first_token, 2 * p.end);
  }
  __device__ void copy(int column, uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < Shape::kSwizzleBlocks; ++i) {
      rows_.copy(2 * (column + i * kSwizzleColumns), stage + i * Shape::kTokens * 128);
    }
  }

 private:
  RowCopies<Shape::kTokens, 2 * kSwizzleColumns> rows_;
};

}  // namespace megamla::cuda::linear
