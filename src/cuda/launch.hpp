// The CUDA runtime with one voice: every error becomes a Status that names the op and the call; every launch is
// checked.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "core/status.hpp"

namespace megamla::cuda {

// RUNTIME_ERROR "<op>: <call>: <name of the error> (<its text>)". Clears the thread's last error.
Status failed(const char* op, const char* call, cudaError_t error);

// OK, or UNSUPPORTED with what is missing: a driver, that device, compute capability 9.0.
Status check_device(const char* op, int32_t device);

// Of a device that check_device accepted.
int multiprocessors(int32_t device);

// Makes a device current for the thread and puts back the one that was. Negative: does nothing.
class DeviceGuard {
 public:
  DeviceGuard(const char* op, int32_t device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  int previous_ = -1;  // -1: nothing to put back
  Status status_;
};

struct LaunchShape {
  int64_t blocks;
  int threads;
  size_t shared_bytes = 0;  // dynamic shared memory
  int cluster = 1;          // blocks of a thread block cluster, which divide `blocks`
};

// Grids beyond this are walked with a stride; it keeps the block index within an int.
constexpr int64_t kMaxBlocks = int64_t{1} << 30;

// Puts a kernel on a stream. No blocks: nothing to do.
template <class... Params, class... Args>
Status launch(const char* op, const LaunchShape& shape, cudaStream_t stream, void (*kernel)(Params...),
              Args&&... args) {
  if (shape.blocks <= 0) return {};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks < kMaxBlocks ? shape.blocks : kMaxBlocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  return error == cudaSuccess ? Status() : failed(op, "launch", error);
}

}  // namespace megamla::cuda

// Returns from the enclosing function, which returns a Status, unless CALL gives cudaSuccess.
#define MEGAMLA_CUDA_CALL(OP, CALL)                                                                                  \
  do {                                                                                                               \
    if (const cudaError_t error_ = (CALL); error_ != cudaSuccess) return ::megamla::cuda::failed(OP, #CALL, error_); \
  } while (false)
