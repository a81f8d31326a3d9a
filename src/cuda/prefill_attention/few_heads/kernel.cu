// For at most 16 heads. Warp roles: threads 0-255 values, 256-383 scores, 384-511 producers.
#include <algorithm>

#include "cuda/launch.hpp"
#include "cuda/prefill_attention/few_heads/scores.cuh"
#include "cuda/prefill_attention/few_heads/values.cuh"
#include "cuda/prefill_attention/kernel.hpp"
#include "cuda/prefill_attention/producer.cuh"

namespace megamla::cuda {
namespace prefill::few_heads {
namespace {

__global__ void __launch_bounds__(kThreads, 1) prefill_few_heads_kernel(const __grid_constant__ PrefillParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kValueThreads / 32) {
    Values(p, shared, threadIdx.x).run();
  } else if (warp < (kValueThreads + kScoreThreads) / 32) {
    Scores(p, shared, threadIdx.x - kValueThreads).run();
  } else {
    Producer<Shared>(p, shared, threadIdx.x - kValueThreads - kScoreThreads).run();
  }
}

}  // namespace
}  // namespace prefill::few_heads

Status launch_prefill_few_heads(const PrefillParams& params, int multiprocessors, void* stream) {
  constexpr const char* kOp = "prefill_attention";
  constexpr auto kShared = static_cast<int>(sizeof(prefill::few_heads::Shared));
  auto* kernel = prefill::few_heads::prefill_few_heads_kernel;
  MEGAMLA_CUDA_CALL(kOp, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const LaunchShape shape{std::min<int64_t>(params.items, multiprocessors), prefill::kThreads, kShared};
  return launch(kOp, shape, static_cast<cudaStream_t>(stream), kernel, params);
}

}  // namespace megamla::cuda
