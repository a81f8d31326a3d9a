// The two FP8 casts. Four lanes hold a group of 32 values, a warp eight groups: for an attention output one chunk of 32
// dims of a group's eight heads, whose 256 bytes lie together; for MXFP8 eight groups of a row.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/launch.hpp"
#include "cuda/output_cast.hpp"
#include "cuda/record_encode.cuh"
#include "cuda/vector_access.cuh"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"

namespace megamla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLaneValues = 8;
constexpr int kGroupLanes = format::kCastGroup / kLaneValues;
constexpr int kWarpGroups = 32 / kGroupLanes;

struct Values {
  float x[kLaneValues];
};

__device__ Values load_values(const float* from, bool aligned) {
  uint32_t words[kLaneValues];
  load_run<4 * kLaneValues>(from, aligned, words);
  Values v;
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) v.x[i] = __uint_as_float(words[i]);
  return v;
}
__device__ Values load_values(const format::Bf16* from, bool aligned) {
  uint32_t words[kLaneValues / 2];
  load_run<2 * kLaneValues>(reinterpret_cast<const uint16_t*>(from), aligned, words);
  Values v;
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) v.x[i] = i % 2 == 0 ? bf16x2_low(words[i / 2]) : bf16x2_high(words[i / 2]);
  return v;
}

// max|x| of the four lanes' group, NaN ignored. All lanes of the warp call.
__device__ float group_amax(const Values& v) {
  float largest = 0;
#pragma unroll
  for (const float x : v.x) largest = fmaxf(largest, fabsf(x));
  return group_max<kGroupLanes>(largest);
}

__device__ void store_codes(const Values& v, float factor, uint8_t* to, bool aligned) {
  const uint32_t words[2] = {to_e4m3x4(v.x[0] * factor, v.x[1] * factor, v.x[2] * factor, v.x[3] * factor),
                             to_e4m3x4(v.x[4] * factor, v.x[5] * factor, v.x[6] * factor, v.x[7] * factor)};
  if (aligned) {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) to[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
}

struct PairArgs {
  const void* in;
  int64_t token_stride, head_stride;
  bool in_aligned, out_aligned;
  uint8_t* out;
  int32_t* scale;
  int64_t scale_token, scale_group, scale_word;  // strides
  int64_t tokens, groups;
};

// A block casts one token's group of heads.
template <class T>
__global__ void __launch_bounds__(kThreads) cast_pair(const PairArgs a) {
  constexpr int kChunks32 = format::kHeadDim / format::kOChunkDims;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = lane / kGroupLanes;
  const int first = lane % kGroupLanes * kLaneValues;
  for (int64_t block = blockIdx.x; block < a.tokens * a.groups; block += gridDim.x) {
    const int64_t token = block / a.groups;
    const int64_t group = block % a.groups;
    const T* in = static_cast<const T*>(a.in) + token * a.token_stride +
                  (group * format::kGroupHeads + head) * a.head_stride + first;
    uint8_t* out = a.out + block * format::kGroupWidth;
#pragma unroll
    for (int chunk = static_cast<int>(threadIdx.x) / 32; chunk < kChunks32; chunk += kWarps) {
      const int dim = chunk * format::kOChunkDims;
      const Values v = load_values(in + dim, a.in_aligned);
      const int e = format::output_group_exponent(group_amax(v));
      store_codes(v, format::inverse_power_of_two(e), out + format::o_chunked_index(head, dim) + first, a.out_aligned);
      // Words of four heads' bytes: the first lane of each half warp holds one.
      const format::PackedScale at = format::packed_scale(format::o_chunk(head, dim));
      uint32_t word = static_cast<uint32_t>(e + 127) << at.shift;
      word |= __shfl_xor_sync(kFullWarp, word, kGroupLanes);
      word |= __shfl_xor_sync(kFullWarp, word, 2 * kGroupLanes);
      if (lane % (4 * kGroupLanes) == 0) {
        a.scale[token * a.scale_token + group * a.scale_group + at.word * a.scale_word] = static_cast<int32_t>(word);
      }
    }
  }
}

struct Mxfp8Args {
  const void* in;
  int64_t row_stride;
  bool in_aligned, out_aligned;
  uint8_t* out;
  uint8_t* scale;
  int64_t rows, columns;
};

// A warp casts eight groups of a row. Rows and groups of the padding get the scale byte 0.
template <class T>
__global__ void __launch_bounds__(kThreads) cast_mxfp8(const Mxfp8Args a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t groups = a.columns / format::kCastGroup;
  const int64_t padded_rows = format::round_up(a.rows, 128);
  const int64_t padded_groups = format::round_up(groups, 4);
  const int64_t items_per_row = (padded_groups + kWarpGroups - 1) / kWarpGroups;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; item < padded_rows * items_per_row;
       item += warps) {
    const int64_t row = item / items_per_row;
    const int64_t k = item % items_per_row * kWarpGroups + lane / kGroupLanes;
    const bool there = row < a.rows && k < groups;
    const int64_t column = k * format::kCastGroup + lane % kGroupLanes * kLaneValues;
    Values v{};
    if (there) v = load_values(static_cast<const T*>(a.in) + row * a.row_stride + column, a.in_aligned);
#pragma unroll
    for (float& x : v.x) x = format::round_to_bf16(x);
    __syncwarp();
    const float largest = group_amax(v);
    const int e = format::detail::is_finite(largest) ? format::group_exponent(largest) : 120;
    if (there) store_codes(v, format::inverse_power_of_two(e), a.out + row * a.columns + column, a.out_aligned);
    if (lane % kGroupLanes == 0 && k < padded_groups) {
      a.scale[format::f8_128x4_index(groups, row, k)] = there ? static_cast<uint8_t>(e + 127) : uint8_t{0};
    }
  }
}

template <class T>
Status run_pair(const megamla_output_cast_params& p, const megamla_exec& exec) {
  PairArgs a{};
  a.in = p.in.data;
  a.token_stride = p.in.stride[0];
  a.head_stride = p.in.stride[1];
  a.in_aligned = rows_aligned(a.in, sizeof(T) * a.token_stride) && rows_aligned(a.in, sizeof(T) * a.head_stride);
  a.out = data<uint8_t>(p.out);
  a.out_aligned = rows_aligned(a.out, 0);
  a.scale = data<int32_t>(p.out_scale);
  a.scale_token = p.out_scale.stride[0];
  a.scale_group = p.out_scale.stride[1];
  a.scale_word = p.out_scale.stride[2];
  a.tokens = p.out.shape[0];
  a.groups = p.out.shape[1];
  const int64_t blocks = std::min<int64_t>(a.tokens * a.groups, 64 * multiprocessors(p.in.cuda_device));
  return launch("output_cast", {blocks, kThreads}, exec.stream, cast_pair<T>, a);
}

template <class T>
Status run_mxfp8(const megamla_output_cast_params& p, const megamla_exec& exec) {
  Mxfp8Args a{};
  a.in = p.in.data;
  a.row_stride = p.in.stride[0];
  a.in_aligned = rows_aligned(a.in, sizeof(T) * a.row_stride);
  a.out = data<uint8_t>(p.out);
  a.out_aligned = rows_aligned(a.out, p.out.shape[1]);
  a.scale = data<uint8_t>(p.out_scale);
  a.rows = p.out.shape[0];
  a.columns = p.out.shape[1];
  const int64_t bytes_of_scales = format::f8_128x4_size(a.rows, a.columns / format::kCastGroup);
  const int64_t blocks = (bytes_of_scales + kWarps - 1) / kWarps;  // at least one warp for eight of them
  return launch("output_cast", {std::min<int64_t>(blocks, 64 * multiprocessors(p.in.cuda_device)), kThreads},
                exec.stream, cast_mxfp8<T>, a);
}

}  // namespace

Status output_cast(const megamla_output_cast_params& p, const megamla_exec& exec) {
  const bool wide = p.in.dtype == MEGAMLA_F32;
  if (p.target == MEGAMLA_CAST_ATTENTION_OUTPUT)
    return wide ? run_pair<float>(p, exec) : run_pair<format::Bf16>(p, exec);
  return wide ? run_mxfp8<float>(p, exec) : run_mxfp8<format::Bf16>(p, exec);
}

}  // namespace megamla::cuda
