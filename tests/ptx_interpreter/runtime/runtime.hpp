// What the files of the runtime share.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace ptx::runtime {

// Remembers an error for cudaGetLastError.
cudaError_t report(cudaError_t error);

// Runs a piece of work now, or keeps it if the stream is being captured.
cudaError_t submit(cudaStream_t stream, std::function<cudaError_t()> work);

int multiprocessors();  // 132, or MEGAMLA_PTX_MULTIPROCESSORS
constexpr int kMostSharedOfBlock = 232448;
constexpr int kSharedOfMultiprocessor = 233472;
constexpr int kThreadsOfMultiprocessor = 2048;

// What is known of a kernel without its machine code.
struct KernelFacts {
  int static_shared = 0;
  int most_threads = 1024;
  int local_bytes = 0;
  int most_cluster = 8;
};
cudaError_t kernel_facts(const void* function, KernelFacts* facts);

}  // namespace ptx::runtime
