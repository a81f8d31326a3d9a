// The chunked orders of queries and outputs, and the layouts of scales: contract sections 4, 7 and 11.
#pragma once

#include <cstdint>

#include "format/host_device.hpp"

namespace megamla::format {

MEGAMLA_HD constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// --- Q: 32 chunks of 16 dims, in each the H heads, in each 16 dims.
constexpr int64_t kQChunkDims = 16;
MEGAMLA_HD constexpr int64_t q_chunked_index(int64_t heads, int64_t head, int64_t dim) {
  return (dim / kQChunkDims) * (heads * kQChunkDims) + head * kQChunkDims + dim % kQChunkDims;
}

// --- O: per group of 8 heads, 16 chunks of 32 dims, in each the 8 heads, in each 32 dims.
constexpr int64_t kGroupHeads = 8;
constexpr int64_t kOChunkDims = 32;
constexpr int64_t kGroupWidth = 4096;     // kGroupHeads * 512
constexpr int64_t kGroupChunks = 128;     // kGroupWidth / kOChunkDims: scale bytes per token and group
constexpr int64_t kGroupScaleWords = 32;  // of 4 scale bytes
MEGAMLA_HD constexpr int64_t o_chunk(int64_t lane_head, int64_t dim) {
  return (dim / kOChunkDims) * kGroupHeads + lane_head;
}
MEGAMLA_HD constexpr int64_t o_chunked_index(int64_t lane_head, int64_t dim) {
  return o_chunk(lane_head, dim) * kOChunkDims + dim % kOChunkDims;
}

// --- Packed scales: chunk k is byte k % 4 of int32 word k / 4; words are token-contiguous.
struct PackedScale {
  int64_t word;
  int shift;  // bits
};
MEGAMLA_HD constexpr PackedScale packed_scale(int64_t chunk) { return {chunk / 4, static_cast<int>(chunk % 4) * 8}; }

// --- F8_128x4: scales of row m, column k; rows padded to 128, columns to 4.
MEGAMLA_HD constexpr int64_t f8_128x4_size(int64_t rows, int64_t columns) {
  return round_up(rows, 128) * round_up(columns, 4);
}
MEGAMLA_HD constexpr int64_t f8_128x4_index(int64_t columns, int64_t m, int64_t k) {
  return (m / 128) * 128 * round_up(columns, 4) + (k / 4) * 512 + (m % 32) * 16 + ((m % 128) / 32) * 4 + k % 4;
}

}  // namespace megamla::format
