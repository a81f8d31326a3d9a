#include "cuda/launch.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace megamla::cuda {
namespace {

struct Device {
  std::string name;
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
};

struct Devices {
  cudaError_t error = cudaSuccess;
  std::vector<Device> list;
};

Devices find_devices() {
  Devices found;
  int count = 0;
  found.error = cudaGetDeviceCount(&count);
  for (int i = 0; i < count && found.error == cudaSuccess; ++i) {
    cudaDeviceProp properties{};
    found.error = cudaGetDeviceProperties(&properties, i);
    found.list.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount});
  }
  if (found.error != cudaSuccess) (void)cudaGetLastError();
  return found;
}

// Asked for once: a process's devices do not change.
const Devices& devices() {
  static const Devices found = find_devices();
  return found;
}

}  // namespace

bool switched_off(const char* name) {
  const char* chosen = std::getenv(name);
  return chosen != nullptr && std::strcmp(chosen, "0") == 0;
}

Status failed(const char* op, const char* call, cudaError_t error) {
  (void)cudaGetLastError();
  return runtime_error("{}: {}: {} ({})", op, call, cudaGetErrorName(error), cudaGetErrorString(error));
}

Status check_device(const char* op, int32_t device) {
  constexpr const char* kWanted = "a GPU of compute capability 9.0 (H100, H200, H20)";
  const Devices& found = devices();
  if (found.error != cudaSuccess)
    return unsupported("{}: device: expected {}, got none ({})", op, kWanted, cudaGetErrorString(found.error));
  const auto count = static_cast<int32_t>(found.list.size());
  if (device < 0 || device >= count)
    return unsupported("{}: device: expected one of the {} CUDA devices, got device {}", op, count, device);
  const Device& d = found.list[static_cast<size_t>(device)];
  if (d.major != 9 || d.minor != 0) {
    return unsupported("{}: device: expected {}, got device {} of compute capability {}.{} ({})", op, kWanted, device,
                       d.major, d.minor, d.name);
  }
  return {};
}

int multiprocessors(int32_t device) { return devices().list[static_cast<size_t>(device)].multiprocessors; }

cudaLaunchAttribute overlap_attribute() {
  static const bool off = switched_off("MEGAMLA_OVERLAP");
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = off ? 0 : 1;
  return overlap;
}

LaunchConfig::LaunchConfig(const LaunchShape& shape, cudaStream_t stream) {
  config_.gridDim = dim3(static_cast<unsigned>(shape.blocks < kMaxBlocks ? shape.blocks : kMaxBlocks));
  config_.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config_.dynamicSmemBytes = shape.shared_bytes;
  config_.stream = stream;
  config_.attrs = attributes_;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes_[config_.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.read_once_bytes > 0) {
    constexpr size_t kLargestWindow = size_t{64} << 20;  // devices allow more
    cudaLaunchAttribute& window = attributes_[config_.numAttrs++];
    window.id = cudaLaunchAttributeAccessPolicyWindow;
    window.val.accessPolicyWindow = {const_cast<void*>(shape.read_once),
                                     std::min(shape.read_once_bytes, kLargestWindow), 1, cudaAccessPropertyStreaming,
                                     cudaAccessPropertyNormal};
  }
  if (shape.overlaps) attributes_[config_.numAttrs++] = overlap_attribute();
}

DeviceGuard::DeviceGuard(const char* op, int32_t device) {
  if (device < 0) return;
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess && current != device) {
    error = cudaSetDevice(device);
    if (error == cudaSuccess) previous_ = current;
  }
  if (error != cudaSuccess) status_ = failed(op, "cudaSetDevice", error);
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

}  // namespace megamla::cuda
