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

// Whether the environment says NAME=0. Switches for measurements (README.md lists them); read once each.
bool switched_off(const char* name);

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
  bool overlaps = false;    // see overlapping()
  // Memory that the kernel reads once, as a layer's weights: it leaves the L2 before anything else does.
  const void* read_once = nullptr;
  size_t read_once_bytes = 0;
};

// For kernels that call ptx::follow_previous: they may begin before the stream's last kernel has ended.
inline LaunchShape overlapping(LaunchShape shape) {
  shape.overlaps = true;
  return shape;
}

// What such a launch says, for configurations that are no LaunchConfig.
cudaLaunchAttribute overlap_attribute();

// Grids beyond this are walked with a stride; it keeps the block index within an int.
constexpr int64_t kMaxBlocks = int64_t{1} << 30;

// A LaunchShape as the runtime takes it.
class LaunchConfig {
 public:
  LaunchConfig(const LaunchShape& shape, cudaStream_t stream);
  LaunchConfig(const LaunchConfig&) = delete;  // config_ points to attributes_
  LaunchConfig& operator=(const LaunchConfig&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[3] = {};
};

// Puts a kernel on a stream. No blocks: nothing to do.
template <class... Params, class... Args>
Status launch(const char* op, const LaunchShape& shape, cudaStream_t stream, void (*kernel)(Params...),
              Args&&... args) {
  if (shape.blocks <= 0) return {};
  const LaunchConfig config(shape, stream);
  const cudaError_t error = cudaLaunchKernelEx(config.get(), kernel, std::forward<Args>(args)...);
  return error == cudaSuccess ? Status() : failed(op, "launch", error);
}

// How many clusters of a kernel the current device holds at once.
template <class... Params>
cudaError_t most_clusters(LaunchShape shape, void (*kernel)(Params...), int* count) {
  shape.overlaps = false;  // changes nothing, and is none of the attributes that this question is about
  const LaunchConfig config(shape, nullptr);
  return cudaOccupancyMaxActiveClusters(count, kernel, config.get());
}

}  // namespace megamla::cuda

// Returns from the enclosing function, which returns a Status, unless CALL gives cudaSuccess.
#define MEGAMLA_CUDA_CALL(OP, CALL)                                                                                  \
  do {                                                                                                               \
    if (const cudaError_t error_ = (CALL); error_ != cudaSuccess) return ::megamla::cuda::failed(OP, #CALL, error_); \
  } while (false)
