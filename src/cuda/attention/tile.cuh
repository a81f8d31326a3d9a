// A tile of 64 rows (heads of Q, or keys) x 512 dims in shared memory, as wgmma reads it.
#pragma once

#include <cstdint>

#include "cuda/attention/params.hpp"
#include "format/kv_record.hpp"

namespace megamla::cuda {

// Blocks of 64 rows x 64 bf16, rows of 128 bytes, 16-byte chunks swizzled by the row.
constexpr int kRowBytes = 128;
constexpr int kBlockBytes = 64 * kRowBytes;
constexpr int kBlocks = format::kHeadDim / 64;
constexpr int kTileBytes = kBlocks * kBlockBytes;

// Byte address of 16-byte chunk `chunk` (0 .. 63) of a row at `row` (row_in_eight = row index % 8).
__device__ __forceinline__ uint32_t chunk_address(uint32_t row, int row_in_eight, int chunk) {
  return row + (chunk >> 3) * kBlockBytes + (((chunk & 7) ^ row_in_eight) << 4);
}

// A ring of stages as one role walks it.
template <int kStages>
struct StageRing {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if constexpr (kStages == 2) {
      stage ^= 1;
    } else {
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (stage == 0) parity ^= 1;
  }
};

}  // namespace megamla::cuda
