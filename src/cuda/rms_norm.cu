// A block normalises a row. Rows in runs of eight elements at multiples of 16 bytes, as all but odd widths and slices
// are, stay in registers, a run a thread; of others a block reads everything twice, the second time from its cache.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/bf16x2.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/sync.cuh"
#include "cuda/rms_norm.hpp"
#include "cuda/row_norm.cuh"
#include "cuda/vector_access.cuh"

namespace megamla::cuda {
namespace {

constexpr int kRun = 8;
constexpr int kLanes = 32;
constexpr int kMostWarps = 32;  // a multiple of 4
constexpr int kMostHeld = kMostWarps * kLanes * kRun;
constexpr int kThreads = 128;  // of a block that reads twice

using format::Bf16;

struct NormArgs {
  const void* x;
  int64_t x_stride;
  const Bf16* weight;
  Bf16* y;
  int64_t y_stride;
  int64_t rows, width;
  double inverse_width;
  float eps;
  uint8_t* written;  // null: not wanted
};

__device__ void load_run_of(const float* from, float (&x)[kRun]) {
  uint32_t words[kRun];
  load_run<4 * kRun>(from, true, words);
#pragma unroll
  for (int i = 0; i < kRun; ++i) x[i] = __uint_as_float(words[i]);
}
__device__ void load_run_of(const Bf16* from, float (&x)[kRun]) {
  uint32_t words[kRun / 2];
  load_run<2 * kRun>(reinterpret_cast<const uint16_t*>(from), true, words);
#pragma unroll
  for (int i = 0; i < kRun; ++i) x[i] = i % 2 == 0 ? bf16x2_low(words[i / 2]) : bf16x2_high(words[i / 2]);
}

// format::to_bf16 of both.
__device__ uint32_t bf16_pair(float low, float high) {
  if (!unordered(low, high)) return bf16x2_round(low, high);
  return format::to_bf16(low).bits | uint32_t{format::to_bf16(high).bits} << 16;
}

// The sum over a block of `warps` warps; `of_warp` is free again once all threads have met.
__device__ double block_sum(double value, double* of_warp, int warps) {
  value = warp_sum(value);
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
  __syncthreads();
  double sum = 0;
#pragma unroll 1
  for (int first = 0; first < warps; first += 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += first + i < warps ? of_warp[first + i] : 0;
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kMostWarps* kLanes) norm_held_rows(const NormArgs a) {
  __shared__ double of_warp[2][kMostWarps];  // in turn, so that a row waits for no reader of the one before
  const int64_t i = kRun * int64_t{threadIdx.x};
  const bool there = i < a.width;
  // In a step's course nobody has read the weight for long: it comes while the kernel before still runs.
  if (there && threadIdx.x % kRun == 0) ptx::prefetch_l2(a.weight + i);
  ptx::follow_previous();
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    if (a.written != nullptr && threadIdx.x == 0) a.written[row] = 1;
    float x[kRun] = {};
    float weight[kRun] = {};
    if (there) load_run_of(static_cast<const T*>(a.x) + row * a.x_stride + i, x);
    if (there) load_run_of(a.weight + i, weight);
    double squares[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kRun; ++j) squares[j % 2] = fma(static_cast<double>(x[j]), x[j], squares[j % 2]);
    const double sum = block_sum(squares[0] + squares[1], of_warp[turn], static_cast<int>(blockDim.x) / kLanes);
    if (!there) continue;
    const double factor = norm_factor(sum, a.inverse_width, a.eps);
    uint32_t words[kRun / 2];
#pragma unroll
    for (int j = 0; j < kRun / 2; ++j) {
      words[j] =
          bf16_pair(normalised(x[2 * j], factor, weight[2 * j]), normalised(x[2 * j + 1], factor, weight[2 * j + 1]));
    }
    *reinterpret_cast<uint4*>(a.y + row * a.y_stride + i) = {words[0], words[1], words[2], words[3]};
  }
}

__device__ float value_of(float x) { return x; }
__device__ float value_of(Bf16 x) { return to_float(x); }

template <class T>
__global__ void __launch_bounds__(kThreads) norm_rows(const NormArgs a) {
  __shared__ double of_warp[kThreads / kLanes];
  ptx::follow_previous();
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    if (a.written != nullptr && threadIdx.x == 0) a.written[row] = 1;
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    double squares = 0;
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
      const double value = value_of(x[i]);
      squares = fma(value, value, squares);
    }
    const double factor = norm_factor(block_sum(squares, of_warp, kThreads / kLanes), a.inverse_width, a.eps);
    __syncthreads();
    Bf16* y = a.y + row * a.y_stride;
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
      y[i] = format::to_bf16(normalised(value_of(x[i]), factor, to_float(a.weight[i])));
    }
  }
}

}  // namespace

Status normalise_rows(const char* op, const megamla_rms_norm_params& p, uint8_t* written, cudaStream_t stream) {
  const NormArgs a{p.x.data,
                   p.x.stride[0],
                   data<const Bf16>(p.weight),
                   data<Bf16>(p.y),
                   p.y.stride[0],
                   p.x.shape[0],
                   p.x.shape[1],
                   1.0 / static_cast<double>(p.x.shape[1]),
                   p.eps,
                   written};
  const bool wide = p.x.dtype == MEGAMLA_F32;
  const bool held = a.width % kRun == 0 && a.width <= kMostHeld && rows_aligned(a.x, (wide ? 4 : 2) * a.x_stride) &&
                    rows_aligned(a.weight, 0) && rows_aligned(a.y, 2 * a.y_stride);
  const int threads = held ? static_cast<int>(a.width / kRun + kLanes - 1) / kLanes * kLanes : kThreads;
  const LaunchShape shape = overlapping({std::min<int64_t>(a.rows, 64 * multiprocessors(p.x.cuda_device)), threads});
  const auto run = [&](auto* kernel) { return launch(op, shape, stream, kernel, a); };
  if (held) return wide ? run(norm_held_rows<float>) : run(norm_held_rows<Bf16>);
  return wide ? run(norm_rows<float>) : run(norm_rows<Bf16>);
}

Status rms_norm(const megamla_rms_norm_params& p, const megamla_exec& exec) {
  return normalise_rows("rms_norm", p, nullptr, exec.stream);
}

}  // namespace megamla::cuda
