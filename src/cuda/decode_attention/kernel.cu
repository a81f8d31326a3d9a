// Warp roles: threads 0-255 values, 256-383 scores, 384-511 producers.
#include <map>
#include <mutex>
#include <utility>

#include "cuda/decode_attention/deal.cuh"
#include "cuda/decode_attention/kernel.hpp"
#include "cuda/decode_attention/producer.cuh"
#include "cuda/decode_attention/values.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"

namespace megamla::cuda {
namespace {

// 16 warps start with 128 registers a thread; warpgroups then trade them.
constexpr int kValueRegisters = 160;
constexpr int kScoreRegisters = 128;
constexpr int kProducerRegisters = 64;
static_assert(2 * kValueRegisters + kScoreRegisters + kProducerRegisters <= 4 * 128);
static_assert(kThreads == 4 * 128);

__device__ __forceinline__ void init_barriers(Barriers& barriers, int thread) {
  uint64_t* barrier = &barriers.keys_full[0][0] + thread;
  const uint32_t arrivals = barrier < &barriers.keys_empty[0][0] ? kProducerWarps
                            : barrier < &barriers.p_full[0]      ? kValueThreads / 2
                            : barrier < &barriers.stats_empty    ? kScoreThreads
                            : barrier < &barriers.places_full    ? kValueThreads
                                                                 : 1;
  if (thread < kBarriers) {
    ptx::mbarrier_init(barrier, arrivals);
    ptx::fence_barrier_init();
  }
}

template <class First, class Second>
__global__ void __launch_bounds__(kThreads, 1) decode_attention_kernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  trace(Trace::kStart);
  ptx::let_next_begin();
  if (p.spread == plan::Spread::kKeys) {
    ptx::wait_for_previous();
    deal_out(p, shared.deal);
  }
  // What needs nothing of the kernel before this one comes before it is waited for.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kValueThreads / 32) {
    init_barriers(shared.barriers, threadIdx.x);
    if (p.cluster > 1) ptx::cluster_arrive();
    ptx::wait_for_previous();
    __syncthreads();
    ptx::take_registers<kValueRegisters>();
    Values(p, shared, threadIdx.x).run();
  } else if (warp < (kValueThreads + kScoreThreads) / 32) {
    Scores scores(p, shared, threadIdx.x - kValueThreads);
    scores.call_first_row();
    if (p.cluster > 1) ptx::cluster_arrive_plain();
    ptx::wait_for_previous();
    __syncthreads();
    ptx::take_registers<kScoreRegisters>();
    scores.run();
  } else {
    // The way to the first record is the longest: it begins before the barriers are ready.
    Producer<First, Second> producer(p, shared, threadIdx.x - kValueThreads - kScoreThreads);
    const auto first = producer.first_tiles();
    if (p.cluster > 1) ptx::cluster_arrive_plain();
    ptx::wait_for_previous();
    producer.ask(first);
    __syncthreads();
    ptx::give_registers<kProducerRegisters>();
    producer.run(first);
  }
}

using Kernel = void (*)(DecodeParams);

Kernel kernel_of(megamla_kv_format window, megamla_kv_format compressed) {
  if (window == MEGAMLA_KV_FP8_584) return decode_attention_kernel<format::Fp8_584, format::Fp8_584>;
  if (compressed == MEGAMLA_KV_NVFP4_288) return decode_attention_kernel<format::Fp8_528, format::Nvfp4_288>;
  return decode_attention_kernel<format::Fp8_528, format::Fp8_528>;
}

struct Launch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2] = {{}, overlap_attribute()};

  Launch(int cluster, int64_t blocks, cudaStream_t stream) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

}  // namespace

cudaError_t decode_attention_device(megamla_kv_format window, megamla_kv_format compressed,
                                    plan::DecodeDevice* device) {
  // Asked once for each device and kernel: the answers do not change, and each call would wait for nine of them.
  static std::mutex mutex;
  static std::map<std::pair<int, Kernel>, plan::DecodeDevice> known;
  const Kernel kernel = kernel_of(window, compressed);
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({current, kernel}); found != known.end()) {
    *device = found->second;
    return cudaSuccess;
  }
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->blocks, cudaDevAttrMultiProcessorCount, current);
  }
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (int n = 2; n <= plan::kMostClusterBlocks && error == cudaSuccess; ++n) {
    Launch launch(n, n, nullptr);
    launch.config.numAttrs = 1;  // the overlap is none of the attributes that this question is about
    error = cudaOccupancyMaxActiveClusters(&device->clusters[static_cast<size_t>(n)], kernel, &launch.config);
    if (n > 8 && error != cudaSuccess) {  // a device need not have clusters of more
      (void)cudaGetLastError();
      error = cudaSuccess;
      break;
    }
  }
  if (error == cudaSuccess) known[{current, kernel}] = *device;
  return error;
}

cudaError_t launch_decode_attention(const DecodeParams& params, megamla_kv_format window, megamla_kv_format compressed,
                                    int64_t blocks, cudaStream_t stream) {
  const Launch launch(params.cluster, blocks, stream);
  return cudaLaunchKernelEx(&launch.config, kernel_of(window, compressed), params);
}

}  // namespace megamla::cuda
