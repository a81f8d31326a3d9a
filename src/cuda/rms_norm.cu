// A block normalises a row: it reads the row twice, the second time from its cache.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/rms_norm.hpp"
#include "cuda/row_norm.cuh"
#include "cuda/vector_access.cuh"

namespace megamla::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

using format::Bf16;

struct NormArgs {
  const void* x;
  int64_t x_stride;
  const Bf16* weight;
  Bf16* y;
  int64_t y_stride;
  int64_t rows, width;
  float eps;
};

// kRun elements at a multiple of 16 bytes, or a single one.
template <int kRun>
__device__ void load(const float* from, float (&x)[kRun]) {
  if constexpr (kRun == 1) {
    x[0] = __ldg(from);
  } else {
    uint32_t words[kRun];
    load_run<4 * kRun>(from, true, words);
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = __uint_as_float(words[i]);
  }
}
template <int kRun>
__device__ void load(const Bf16* from, float (&x)[kRun]) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  if constexpr (kRun == 1) {
    x[0] = to_float(Bf16{__ldg(bits)});
  } else {
    uint32_t words[kRun / 2];
    load_run<2 * kRun>(bits, true, words);
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = to_float(Bf16{static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)))});
  }
}

template <class T, int kRun>
__global__ void __launch_bounds__(kThreads) norm_rows(const NormArgs a) {
  ptx::follow_previous();
  __shared__ double of_warp[kWarps];
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    double squares = 0;
    for (int64_t i = kRun * int64_t{threadIdx.x}; i < a.width; i += kRun * kThreads) {
      float run[kRun];
      load<kRun>(x + i, run);
#pragma unroll
      for (const float value : run) squares += static_cast<double>(value) * value;
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = squares;
    __syncthreads();
    double sum = 0;
#pragma unroll
    for (const double part : of_warp) sum += part;
    __syncthreads();
    const double factor = norm_factor(sum, a.width, a.eps);
    Bf16* y = a.y + row * a.y_stride;
    for (int64_t i = kRun * int64_t{threadIdx.x}; i < a.width; i += kRun * kThreads) {
      float run[kRun];
      float weight[kRun];
      load<kRun>(x + i, run);
      load<kRun>(a.weight + i, weight);
      if constexpr (kRun == 1) {
        y[i] = normalised(run[0], factor, format::to_bf16(weight[0]));
      } else {
        uint32_t words[kRun / 2] = {};
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          words[j / 2] |= uint32_t{normalised(run[j], factor, format::to_bf16(weight[j])).bits} << (16 * (j % 2));
        }
        *reinterpret_cast<uint4*>(y + i) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

}  // namespace

Status rms_norm(const megamla_rms_norm_params& p, const megamla_exec& exec) {
  const NormArgs a{p.x.data,        p.x.stride[0], data<const Bf16>(p.weight),
                   data<Bf16>(p.y), p.y.stride[0], p.x.shape[0],
                   p.x.shape[1],    p.eps};
  const int64_t element = megamla_dtype_size(static_cast<megamla_dtype>(p.x.dtype));
  const bool runs = a.width % 8 == 0 && rows_aligned(a.x, element * a.x_stride) && rows_aligned(a.weight, 0) &&
                    rows_aligned(a.y, 2 * a.y_stride);
  const LaunchShape shape = overlapping({std::min<int64_t>(a.rows, 64 * multiprocessors(p.x.cuda_device)), kThreads});
  const auto run = [&](auto* kernel) { return launch("rms_norm", shape, exec.stream, kernel, a); };
  if (p.x.dtype == MEGAMLA_F32) return runs ? run(norm_rows<float, 8>) : run(norm_rows<float, 1>);
  return runs ? run(norm_rows<Bf16, 8>) : run(norm_rows<Bf16, 1>);
}

}  // namespace megamla::cuda
