// One block: 128 weight rows times 8 .. 128 tokens over its share of the columns. Weights go from memory to registers
// once and are widened there; the tokens' values, widened, pass through shared memory in two buffers.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/operands.cuh"
#include "cuda/block_scaled_linear/store_tile.cuh"

namespace megamla::cuda::linear {

struct TilePlace {
  int rank;  // of the blocks that share the columns
  int64_t group, first_row, first_token;
  int begin, end;  // columns
};

// Blocks of a cluster are neighbours; the row tiles of one tile of tokens come one after the other and find it in L2.
template <class Shape>
__device__ inline TilePlace tile_place(const LinearArgs& a) {
  TilePlace p{};
  int64_t tile = blockIdx.x / a.splits;
  p.rank = static_cast<int>(blockIdx.x % a.splits);
  p.first_row = tile % a.row_tiles * kTileRows;
  tile /= a.row_tiles;
  p.group = tile % a.groups;
  p.first_token = tile / a.groups * Shape::kTokens;
  const auto in = static_cast<int>(a.in);
  const int chunks = (in + kChunkColumns - 1) / kChunkColumns;
  p.begin = chunks * p.rank / a.splits * kChunkColumns;
  p.end = min(chunks * (p.rank + 1) / a.splits * kChunkColumns, in);
  return p;
}

// The units of x that a thread carries to shared memory: neighbours in a warp are neighbours in memory. 64 units are 8
// tokens of a chunk.
template <class Shape, int kTokenTiles, bool kFp8X>
class XStage {
  using Unit = XUnit<kFp8X>;

 public:
  __device__ XStage(const LinearArgs& a, const TilePlace& p) {
    const int place = static_cast<int>(threadIdx.x) / 64;
    half_ = static_cast<int>(threadIdx.x) % 2;
    lane_ = static_cast<int>(threadIdx.x) / 2 % 32;
    chunk_ = place / kTokenTiles;
    token_ = 8 * (place % kTokenTiles) + lane_ / 4;
    column_ = chunk_ * kChunkColumns + 16 * (lane_ % 4) + 8 * half_;
    x_ = static_cast<const uint8_t*>(a.x) +
         ((p.first_token + token_) * a.x_token + p.group * a.x_group + column_) * Unit::kBytes;
    scale_ = static_cast<const uint8_t*>(a.x_scale);
    if (kFp8X && a.x_scale_packed) scale_ += x_scale_of_token(a, p.first_token + token_, p.group);
  }
  __device__ void load(const LinearArgs& a, const TilePlace& p, int first_column, int part) {
    const auto tokens = static_cast<int>(min(a.tokens - p.first_token, int64_t{Shape::kTokens}));
#pragma unroll
    for (int i = 0; i < kPartUnits; ++i) {
      const int token = tokens_further(part, i);
      const int column = first_column + chunks_further(part, i) * kChunkColumns;
      const uint8_t* scale = scale_;
      if constexpr (kFp8X) {
        scale += x_scale_of_column(a, column + column_) +
                 (a.x_scale_packed ? 4 * token * a.x_scale_token
                                   : x_scale_of_token(a, p.first_token + token_ + token, p.group));
      }
      units_[i].load(x_ + (token * a.x_token + column) * Unit::kBytes, a.x_aligned, scale,
                     token_ + token < tokens && column + column_ < p.end);
    }
  }
  __device__ void store(uint4* to, int part) const {
#pragma unroll
    for (int i = 0; i < kPartUnits; ++i) {
      const int chunk = chunk_ + chunks_further(part, i);
      const int tile = (token_ + tokens_further(part, i)) / 8;
      if (chunk < Shape::kChunks) to[x_place<kTokenTiles>(chunk, tile, half_, lane_)] = units_[i].widened();
    }
  }

 private:
  static constexpr int kPartUnits = Shape::kThreadUnits / Shape::kXParts;
  // From a thread's first unit to its others. Powers of two, so that tile and chunk do not carry into each other.
  static constexpr int kBlocks = Shape::kThreads / 64;
  __device__ static constexpr int tokens_further(int part, int i) {
    return 8 * ((part * kPartUnits + i) * kBlocks % kTokenTiles);
  }
  __device__ static constexpr int chunks_further(int part, int i) {
    return (part * kPartUnits + i) * kBlocks / kTokenTiles;
  }

  Unit units_[kPartUnits];
  const uint8_t* x_;  // of the thread's first unit, at column 0 of the row
  const uint8_t* scale_;
  int token_, column_, chunk_, lane_, half_;
};

// The weight rows of a lane: rows lane / 4 and lane / 4 + 8 of each tile of 16, 16 columns a chunk.
template <class Run, class Shape>
class LaneRows {
 public:
  __device__ LaneRows(const LinearArgs& a, const TilePlace& p) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t row = p.first_row + static_cast<int>(threadIdx.x) / 32 * 16 * Shape::kRowTiles + lane / 4;
    const int64_t of_group = p.group * a.out + row;
    lane_column_ = lane % 4 * 16;
    row_ = static_cast<const uint8_t*>(a.weight) + (of_group * a.in + lane_column_) * Run::kBytes;
    scale_ = a.weight_scale + (of_group >> a.rows_per_scale_log2) * (a.in / 32) + lane_column_ / 32;
    rows_left_ = static_cast<int>(min(a.out - row, int64_t{kTileRows}));
    end_ = p.end;
  }
  __device__ void load(const LinearArgs& a, int column, Run (&runs)[Shape::kRuns]) const {
#pragma unroll
    for (int i = 0; i < Shape::kRuns; ++i) {
      // Rows i of a lane lie within one block of 32.
      const int64_t scale_row = a.rows_per_scale_log2 == 0 ? 8 * i * (a.in / 32) : 0;
      runs[i].load(row_ + (8 * i * a.in + column) * Run::kBytes, scale_ + scale_row + column / 32,
                   8 * i < rows_left_ && column + lane_column_ < end_);
    }
  }

 private:
  const uint8_t* row_;
  const uint8_t* scale_;
  int lane_column_, rows_left_, end_;
};

template <class Run, int kRuns>
__device__ inline bool any_rare(const Run (&runs)[kRuns]) {
  bool rare = false;
#pragma unroll
  for (const Run& run : runs) rare |= run.is_rare();
  return __any_sync(kFullWarp, rare);
}

// Half a chunk: sum += weights * x. `x` points to the half's operands of the first tile. `rare`: of any lane. `widened`
// is called once the runs are free.
template <class Run, int kRowTiles, int kTokenTiles, class Widened>
__device__ inline void multiply_half(const Run (&runs)[2 * kRowTiles], bool rare, int half, const uint4* x,
                                     float (&sum)[kRowTiles][kTokenTiles][4], Widened&& widened) {
  uint32_t w[kRowTiles][2][4];
#pragma unroll
  for (int i = 0; i < 8 * kRowTiles; ++i) {
    w[i / 8][i / 4 % 2][i % 4] = runs[i / 8 * 2 + i % 2].widened(2 * half + i / 4 % 2, i / 2 % 2);
  }
  if (rare) {
#pragma unroll
    for (int i = 0; i < 8 * kRowTiles; ++i) {
      uint32_t& pair = w[i / 8][i / 4 % 2][i % 4];
      pair = runs[i / 8 * 2 + i % 2].mended(pair, 2 * half + i / 4 % 2, i / 2 % 2);
    }
  }
  widened();
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const uint4 b = x[64 * tile];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma_m16n8k16(sum[r][tile], w[r][0], b.x, b.y);
      mma_m16n8k16(sum[r][tile], w[r][1], b.z, b.w);
    }
  }
}

template <class Run, bool kFp8X, int kTokenTiles, class Shape = TileShape<kTokenTiles, Run::kBytes>>
__global__ void __launch_bounds__(Shape::kThreads, 2) linear_tile(const LinearArgs a) {
  constexpr int kHalves = 2 * Shape::kChunks;
  constexpr int kPartHalves = kHalves / Shape::kXParts;
  extern __shared__ uint4 shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TilePlace p = tile_place<Shape>(a);
  const LaneRows<Run, Shape> rows(a, p);

  Run runs[Shape::kChunks][Shape::kRuns];
#pragma unroll
  for (int c = 0; c < Shape::kChunks; ++c) rows.load(a, p.begin + c * kChunkColumns, runs[c]);
  XStage<Shape, kTokenTiles, kFp8X> stage(a, p);
#pragma unroll
  for (int part = 0; part < Shape::kXParts; ++part) {
    stage.load(a, p, p.begin, part);
    stage.store(shared, part);
  }
  __syncthreads();

  float sum[Shape::kRowTiles][kTokenTiles][4] = {};
  int buffer = 0;
#pragma unroll 1
  for (int column = p.begin; column < p.end; column += Shape::kColumns) {
    const bool more = column + Shape::kColumns < p.end;
    bool rare = false;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int part = h / kPartHalves;
      const int chunk_column = column + h / 2 * kChunkColumns;
      Run(&now)[Shape::kRuns] = runs[h / 2];
      if (more && h % kPartHalves == 0) stage.load(a, p, column + Shape::kColumns, part);
      if (chunk_column < p.end) {
        if (h % 2 == 0) rare = any_rare(now);
        const uint4* of_half = shared + buffer * Shape::kUnits + x_place<kTokenTiles>(h / 2, 0, h % 2, lane);
        multiply_half(now, rare, h % 2, of_half, sum, [&] {
          if (h % 2 == 1) rows.load(a, chunk_column + Shape::kColumns, now);
        });
      }
      if (more && h % kPartHalves == kPartHalves - 1) stage.store(shared + (buffer ^ 1) * Shape::kUnits, part);
    }
    buffer ^= 1;
    __syncthreads();
  }

  auto* sums = reinterpret_cast<float*>(shared);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * Shape::kRowTiles;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * tile + lane % 4 * 2 + i % 2;
        sums[token * Shape::kSumPitch + warp_row + 16 * r + lane / 4 + i / 2 * 8] = sum[r][tile][i];
      }
    }
  }
  a.splits == 1 ? __syncthreads() : cluster_barrier();
  store_tile<Shape>(a, sums, p.rank, p.first_token, p.group, p.first_row);
  if (a.splits > 1) cluster_barrier();  // a block's shared memory lives until all have read it
}

}  // namespace megamla::cuda::linear
