// Rows of memory to a stage of shared memory, behind the program's back.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/tile_shape.hpp"
#include "cuda/ptx/sync.cuh"

namespace megamla::cuda::linear {

// In a stage a row has 64 or 128 bytes; its 16-byte granules are turned so that eight rows' granules of the same
// columns lie in different banks. For 128 bytes this is the swizzle of wgmma.
template <int kRowBytes>
__device__ constexpr int granule_turn(int row) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  return kRowBytes == 128 ? row % 8 : row / 2 % 4;
}

// A producer thread's part of a stage: every few rows one granule.
template <int kRows, int kRowBytes>
class RowCopies {
  static constexpr int kGranules = kRowBytes / 16;
  static constexpr int kPassRows = kProducerThreads / kGranules;
  static constexpr int kPasses = kRows < kPassRows ? 1 : kRows / kPassRows;

 public:
  __device__ explicit RowCopies(int thread) : row_(thread / kGranules), granule_(thread % kGranules) {
    to_ = row_ * kRowBytes + ((granule_ ^ granule_turn<kRowBytes>(row_)) << 4);
  }
  // `rows` rows of `end` bytes, `pitch` bytes apart. All are multiples of 16 bytes.
  __device__ void begin(const uint8_t* first, int64_t pitch, int64_t rows, int end) {
    from_ = first + row_ * pitch + granule_ * 16;
    pass_ = kPassRows * pitch;
    rows_ = static_cast<int>(min(rows, int64_t{kRows})) - row_;
    end_ = end - granule_ * 16;
  }
  // From byte `at` of the rows on; zeros where there is no such row or byte.
  __device__ void copy(int at, uint32_t stage) const {
    if (kRows < kPassRows && row_ >= kRows) return;
    if ((kPasses - 1) * kPassRows < rows_ && at < end_) {
      copy_passes(at, stage, [](int) { return true; });
    } else {
      copy_passes(at, stage, [&](int i) { return i * kPassRows < rows_ && at < end_; });
    }
  }

 private:
  template <class There>
  __device__ void copy_passes(int at, uint32_t stage, There there) const {
    const uint8_t* from = from_ + at;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      ptx::copy_16_async_streaming(stage + to_ + i * kPassRows * kRowBytes, from, there(i));
      from += pass_;
    }
  }

  int row_, granule_, rows_, end_;
  uint32_t to_;
  int64_t pass_;
  const uint8_t* from_;
};

}  // namespace megamla::cuda::linear
