// Up to 16 tokens: the time is that of reading the weights once. Each warp copies its own, a few stages ahead, to
// its own part of shared memory; warps share nothing but the sums at the end.
//
// Tokens are the M of a warp's matrix multiply and eight weight rows its N. A lane's eight neighbouring codes of a row
// are its k = 2t, 2t+1, 2t+8, 2t+9 of two steps, and so are its eight columns of x. Codes are multiplied as f16, exact;
// each group's products are added to fp32 sums with the scales of row and token. x in bf16 is taken relative to the
// largest of its group: f16 holds all bits of what is more than 2^-29 of it, and bits down to 2^-39 of it.
#pragma once

#include <cstdint>

#include "cuda/block_scaled_linear/few_tokens_shape.hpp"
#include "cuda/block_scaled_linear/inputs.cuh"
#include "cuda/block_scaled_linear/linear_args.hpp"
#include "cuda/block_scaled_linear/store_tile.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/sync.cuh"

namespace megamla::cuda::linear {

// 2^(byte - 127), NaN of 255.
__device__ inline float scale_value(uint32_t byte) {
  const float power = __uint_as_float(max(byte << 23, 0x00400000U));
  return fmaf(power, 0.0F, power);  // of infinity NaN
}

// x of a lane's token in a group: eight columns.
template <bool kFp8X>
struct TokenColumns;

template <>
struct TokenColumns<true> {
  static constexpr int kBytes = 1;
  uint2 codes;

  __device__ void load(const uint8_t* from) { codes = __ldg(reinterpret_cast<const uint2*>(from)); }
  // To four pairs of f16 and the factor that is left.
  __device__ float widen(uint32_t scale, uint32_t (&pairs)[4]) const {
    pairs[0] = ptx::low_e4m3_to_f16(codes.x);
    pairs[1] = ptx::high_e4m3_to_f16(codes.x);
    pairs[2] = ptx::low_e4m3_to_f16(codes.y);
    pairs[3] = ptx::high_e4m3_to_f16(codes.y);
    return scale_value(scale);
  }
};

template <>
struct TokenColumns<false> {
  static constexpr int kBytes = 2;
  uint4 values;

  __device__ void load(const uint8_t* from) { values = __ldg(reinterpret_cast<const uint4*>(from)); }
  __device__ float widen(uint32_t, uint32_t (&pairs)[4]) const {
    const uint32_t words[4] = {values.x, values.y, values.z, values.w};
    float value[8];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      value[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000U);
      largest = fmaxf(largest, fabsf(value[i]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    // 2^up makes the largest's exponent 14; both factors are normal numbers.
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 15);
    const float up = __uint_as_float(static_cast<uint32_t>(127 + 127 + 14 - exponent) << 23);
    const float factor = __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = ptx::pack_f16(value[2 * i] * up, value[2 * i + 1] * up);
    return factor;
  }
};

// A warp's rows and columns.
template <class Shape>
class FewTokens {
  static constexpr int kTiles = Shape::kTiles;
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kHalves = Shape::kTokens / 8;
  using Columns = TokenColumns<Shape::kFp8X>;

 public:
  // `ring`: the warp's part of shared memory; then factors.
  __device__ FewTokens(const LinearArgs& a, int64_t group, int64_t first_row, int first, int last, uint32_t ring)
      : a_(a), ring_(ring), first_(first), last_(last), row_(group * a.out + first_row) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    weights_ = static_cast<const uint8_t*>(a.weight) + row_ * a.in + first * 32;
  }

  // The first columns of the warp's rows to L2, 128 bytes of a row at a time: lanes take rows in turn.
  __device__ void call_weights(int bytes) const {
    const uint8_t* from = weights_ + lane_ * a_.in;
    const int end = min(bytes, (last_ - first_) * 32);
    for (int at = 0; at < end; at += 128) {
#pragma unroll
      for (int row = 0; row < kRows; row += 32) {
        if (row + lane_ < kRows) ptx::prefetch_l2(from + row * a_.in + at);
      }
    }
  }

  __device__ void begin(int64_t group) {
    weights_ += lane_ / kRowGranules * a_.in + lane_ % kRowGranules * 16;
#pragma unroll
    for (int i = 0; i < Shape::kStages; ++i) copy_stage(i, first_ + i * kStageGroups);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      // Tokens beyond the last repeat it; their sums go nowhere.
      const int64_t token = min(int64_t{lane_ / 4 + 8 * half}, a_.tokens - 1);
      x_[half] = static_cast<const uint8_t*>(a_.x) +
                 (token * a_.x_token + group * a_.x_group + lane_ % 4 * 8 + first_ * 32) * Columns::kBytes;
      if constexpr (Shape::kFp8X) {
        x_scales_[half] = static_cast<const uint8_t*>(a_.x_scale) + x_scale_of_token(a_, token, group);
      }
    }
#pragma unroll
    for (int i = 0; i < kStageGroups; ++i) load_x(i, i);
    load_x_scales(first_);
  }

  // Factors of the warp's rows and groups, [group][row]; two groups' scales are loaded at once.
  __device__ void keep_scales() {
    const int pairs = (last_ - first_) / 2;
#pragma unroll
    for (int row = lane_; row < kRows; row += 32) {
      const auto* from = reinterpret_cast<const uint16_t*>(
          a_.weight_scale + ((row_ + row) >> a_.rows_per_scale_log2) * (a_.in / 32) + first_);
      uint32_t to = factors() + 4 * row;
#pragma unroll 4
      for (int i = 0; i < pairs; ++i) {
        const uint32_t bytes = __ldg(from + i);
        ptx::store_shared(to, __float_as_uint(scale_value(bytes & 0xff)));
        ptx::store_shared(to + 4 * kRows, __float_as_uint(scale_value(bytes >> 8)));
        to += 8 * kRows;
      }
    }
    __syncwarp();
  }

  __device__ void run() {
    uint32_t factors = this->factors() + lane_ % 4 * 8;
    int stage = 0;
#pragma unroll 1
    for (int column = first_; column < last_; column += kStageGroups) {
      ptx::wait_copies<Shape::kStages - 1>();
      __syncwarp();
      const bool more = column + kStageGroups < last_;
#pragma unroll
      for (int i = 0; i < kStageGroups; ++i) {
        uint32_t pairs[2][4];
        float of_token[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (half < kHalves) {
            of_token[half] = columns_[i][half].widen(x_bytes_[half] >> (8 * i) & 0xff, pairs[half]);
          } else {
#pragma unroll
            for (uint32_t& pair : pairs[half]) asm("mov.b32 %0, 0;" : "=r"(pair));
          }
        }
        const auto next_x = [&] {
          if (more) load_x(i, kStageGroups + i);
        };
        if (kXEarly) next_x();
        multiply(ring_ + stage * Shape::kStageBytes + i * Shape::kGroupBytes, pairs, of_token, factors);
        if (!kXEarly) next_x();
        factors += 4 * kRows;
      }
      if (more) load_x_scales(column + kStageGroups);
#pragma unroll
      for (const uint8_t*& x : x_) x += kStageGroups * 32 * Columns::kBytes;
      __syncwarp();
      copy_stage(stage, column + Shape::kStages * kStageGroups);
      if (++stage == Shape::kStages) stage = 0;
    }
    ptx::wait_copies<0>();
  }

  // To [token][row] of the block's sums.
  __device__ void write_sums(float* sums, int pitch) const {
    float* to = sums + lane_ / 4 * pitch + lane_ % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        *reinterpret_cast<float2*>(to + 8 * half * pitch + 8 * tile) = {sum_[tile][2 * half], sum_[tile][2 * half + 1]};
      }
    }
  }

 private:
  static constexpr int kStageGroups = Shape::kStageGroups;
  // Before the products of the same place, where registers allow it.
  static constexpr bool kXEarly = kTiles * Shape::kTokens * Columns::kBytes < 256;
  static constexpr int kRowGranules = 2 * kStageGroups;  // of 16 bytes, of a row in a stage
  static constexpr int kCopyRows = 32 / kRowGranules;

  __device__ void copy_stage(int stage, int column) {
    if (column < last_) {
      const int granule = lane_ % kRowGranules;
      const uint32_t to = ring_ + stage * Shape::kStageBytes + granule / 2 * Shape::kGroupBytes +
                          lane_ / kRowGranules * 32 + granule % 2 * 16;
      const uint8_t* from = weights_;
#pragma unroll
      for (int i = 0; i < kRows / kCopyRows; ++i) {
        ptx::copy_16_async_whole(to + i * kCopyRows * 32, from);
        from += kCopyRows * a_.in;
      }
      weights_ += kStageGroups * 32;
    }
    ptx::commit_copies();
  }
  // Of the group that is `ahead` groups on.
  __device__ void load_x(int i, int ahead) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) columns_[i][half].load(x_[half] + ahead * 32 * Columns::kBytes);
  }
  // Of both groups of a stage.
  __device__ void load_x_scales(int column) {
    if constexpr (Shape::kFp8X) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        x_bytes_[half] = __ldg(reinterpret_cast<const uint16_t*>(x_scales_[half] + x_scale_of_column(a_, column * 32)));
      }
    }
  }
  __device__ void multiply(uint32_t codes_at, const uint32_t (&pairs)[2][4], const float (&of_token)[2],
                           uint32_t factors) {
    const ptx::FragmentA a[2] = {{pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]},
                                 {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]}};
    const uint32_t from = codes_at + lane_ * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint2 codes = ptx::load_shared_2(from + tile * 256);
      float products[4] = {};
      ptx::mma_f16(products, a[0], ptx::low_e4m3_to_f16(codes.x), ptx::high_e4m3_to_f16(codes.x));
      ptx::mma_f16(products, a[1], ptx::low_e4m3_to_f16(codes.y), ptx::high_e4m3_to_f16(codes.y));
      const uint2 bits = ptx::load_shared_2(factors + tile * 32);
      const float2 of_row = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        sum_[tile][2 * half] = fmaf(products[2 * half] * of_row.x, of_token[half], sum_[tile][2 * half]);
        sum_[tile][2 * half + 1] = fmaf(products[2 * half + 1] * of_row.y, of_token[half], sum_[tile][2 * half + 1]);
      }
    }
  }

  __device__ uint32_t factors() const { return ring_ + Shape::kRingBytes; }

  const LinearArgs& a_;
  uint32_t ring_;
  int lane_, first_, last_;  // columns in groups of 32
  int64_t row_;
  const uint8_t* weights_;
  const uint8_t* x_[kHalves];
  const uint8_t* x_scales_[kHalves];
  uint32_t x_bytes_[kHalves] = {};
  Columns columns_[kStageGroups][kHalves];
  float sum_[kTiles][2 * kHalves] = {};
};

// The block's rows, four a thread: parts added in the order of their columns.
template <class Shape>
__device__ inline void store_few_tokens(const LinearArgs& a, const float* sums, int64_t group, int64_t first_row) {
  const int rows = 8 * Shape::kTiles << a.row_warps_log2;
  const int parts = kFewTokensWarps >> a.row_warps_log2;
  const int pitch = rows + 8;
  const int lane_groups = rows / kLaneRows;
  // MXFP8 has scales of padding, too.
  const int64_t tokens = a.output == MEGAMLA_LINEAR_OUT_MXFP8 ? format::round_up(a.tokens, 128) : a.tokens;
  const int items = static_cast<int>(tokens) * lane_groups;
  // All lanes of a warp go on until the last is done: groups of MXFP8 are shared by lanes.
  const int thread = static_cast<int>(threadIdx.x);
  for (int item = thread; item - thread % 32 < items; item += kFewTokensThreads) {
    const int token = item / lane_groups;
    const int row = item % lane_groups * kLaneRows;
    const bool there = item < items;
    float v[kLaneRows] = {};
    if (there && token < a.tokens) {
      for (int part = 0; part < parts; ++part) {
        const float4 more = *reinterpret_cast<const float4*>(sums + (part * Shape::kTokens + token) * pitch + row);
        v[0] += more.x;
        v[1] += more.y;
        v[2] += more.z;
        v[3] += more.w;
      }
    }
    store_lane(a, v, token, group, there ? first_row + row : a.out);
  }
}

template <class Shape>
__global__ void __launch_bounds__(kFewTokensThreads, Shape::kBlocksPerSm)
    few_tokens_kernel(const __grid_constant__ LinearArgs a) {
  extern __shared__ uint8_t memory[];
  ptx::let_next_begin();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_warps = 1 << a.row_warps_log2;
  const int part = warp >> a.row_warps_log2;
  const int row_warp = warp & (row_warps - 1);
  constexpr int kRows = 8 * Shape::kTiles;
  const uint32_t group = a.groups == 1 ? 0 : blockIdx.x / a.group_row_tiles;
  const int64_t first_row = int64_t{blockIdx.x - group * a.group_row_tiles} * (kRows * row_warps);
  const int pieces = static_cast<int>(a.in) / (32 * Shape::kStageGroups);
  const int parts_log2 = kFewTokensWarpsLog2 - a.row_warps_log2;
  const int first = (pieces * part >> parts_log2) * Shape::kStageGroups;
  const int last = (pieces * (part + 1) >> parts_log2) * Shape::kStageGroups;
  const uint32_t ring = ptx::shared_address(memory) + warp * few_tokens_warp_bytes<Shape>(a.in, parts_log2);
  FewTokens<Shape> work(a, group, first_row + kRows * row_warp, first, last, ring);
  work.call_weights(a.called_bytes);
  ptx::wait_for_previous();
  work.begin(group);
  work.keep_scales();
  work.run();
  __syncthreads();  // sums take the place of what they came from
  auto* sums = reinterpret_cast<float*>(memory);
  const int pitch = kRows * row_warps + 8;
  work.write_sums(sums + part * Shape::kTokens * pitch + row_warp * kRows, pitch);
  __syncthreads();
  store_few_tokens<Shape>(a, sums, group, first_row);
}

}  // namespace megamla::cuda::linear
