// Warp roles: threads 0-255 values, 256-383 scores, 384-511 producers.
#include <algorithm>

#include "cuda/launch.hpp"
#include "cuda/prefill_attention/kernel.hpp"
#include "cuda/prefill_attention/producer.cuh"
#include "cuda/prefill_attention/scores.cuh"
#include "cuda/prefill_attention/values.cuh"

namespace megamla::cuda {
namespace prefill {
namespace {

// 16 warps start with 128 registers a thread; warpgroups then trade them.
constexpr int kValueRegisters = 160;
constexpr int kScoreRegisters = 112;
constexpr int kProducerRegisters = 80;
static_assert(2 * kValueRegisters + kScoreRegisters + kProducerRegisters <= 4 * 128);
static_assert(kThreads == 4 * 128);

__global__ void __launch_bounds__(kThreads, 1) prefill_attention_kernel(const __grid_constant__ PrefillParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kValueThreads / 32) {
    ptx::take_registers<kValueRegisters>();
    Values(p, shared, threadIdx.x).run();
  } else if (warp < (kValueThreads + kScoreThreads) / 32) {
    ptx::give_registers<kScoreRegisters>();
    Scores(p, shared, threadIdx.x - kValueThreads).run();
  } else {
    ptx::give_registers<kProducerRegisters>();
    Producer<Shared>(p, shared, threadIdx.x - kValueThreads - kScoreThreads).run();
  }
}

}  // namespace
}  // namespace prefill

Status launch_prefill_attention(const PrefillParams& params, int multiprocessors, void* stream) {
  constexpr const char* kOp = "prefill_attention";
  constexpr auto kShared = static_cast<int>(sizeof(prefill::Shared));
  auto* kernel = prefill::prefill_attention_kernel;
  MEGAMLA_CUDA_CALL(kOp, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const LaunchShape shape{std::min<int64_t>(params.items, multiprocessors), prefill::kThreads, kShared};
  return launch(kOp, shape, static_cast<cudaStream_t>(stream), kernel, params);
}

}  // namespace megamla::cuda
