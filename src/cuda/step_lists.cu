// Lists between a step's metadata and the ops: a few bytes a token, bound by the launch.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/step_lists.hpp"
#include "cuda/vector_access.cuh"

namespace megamla::cuda {
namespace {

constexpr int kThreads = 128;

// A block per row of a matrix, threads along it.
__global__ void __launch_bounds__(kThreads)
    builtin_topk_rows(IndexList positions, int64_t ratio, int32_t* topk, int64_t stride, int64_t rows, int64_t width) {
  ptx::follow_previous();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t keys = plan::compressed_keys(positions[row], ratio);
    for (int64_t k = threadIdx.x; k < width; k += kThreads)
      topk[row * stride + k] = plan::builtin_topk_column(keys, width, k);
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_rows(float* to, int64_t stride, int64_t rows, int64_t width, float value) {
  ptx::follow_previous();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t i = threadIdx.x; i < width; i += kThreads) to[row * stride + i] = value;
  }
}

__global__ void __launch_bounds__(kThreads)
    gathered_lens_of_requests(plan::RaggedBatch batch, int64_t window, int64_t ratio, int32_t* window_lens,
                              int32_t* compressed_lens) {
  ptx::follow_previous();
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x; r < batch.num_requests; r += threads) {
    const plan::GatheredLens lens = plan::gathered_lens(batch, r, window, ratio);
    window_lens[r] = lens.window;
    if (compressed_lens != nullptr) compressed_lens[r] = lens.compressed;
  }
}

}  // namespace

Status builtin_topk(const megamla_tensor& positions, int64_t compress_ratio, const megamla_tensor& topk,
                    CUstream_st* stream) {
  const IndexList list{positions.data, positions.dtype == MEGAMLA_I64};
  return launch("builtin_topk", overlapping({topk.shape[0], kThreads}), stream, builtin_topk_rows, list, compress_ratio,
                data<int32_t>(topk), topk.stride[0], topk.shape[0], topk.shape[1]);
}

Status gathered_lens(const plan::RaggedBatch& batch, int64_t window, int64_t compress_ratio, int32_t* window_lens,
                     int32_t* compressed_lens, CUstream_st* stream) {
  const int64_t blocks = (batch.num_requests + kThreads - 1) / kThreads;
  return launch("gathered_lens", overlapping({blocks, kThreads}), stream, gathered_lens_of_requests, batch, window,
                compress_ratio, window_lens, compressed_lens);
}

Status fill_f32(const megamla_tensor& t, float value, CUstream_st* stream) {
  return launch("fill_f32", overlapping({t.shape[0], kThreads}), stream, fill_rows, data<float>(t), t.stride[0],
                t.shape[0], t.shape[1], value);
}

}  // namespace megamla::cuda
