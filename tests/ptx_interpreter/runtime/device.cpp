// The device that the runtime shows: an H200, as far as kernels can tell.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime.hpp"

namespace ptx::runtime {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::max(1, std::atoi(text));
}

// All of one memory.
int devices() {
  static const int count = from_environment("MEGAMLA_PTX_DEVICES", 1);
  return count;
}
bool is_device(int device) { return device >= 0 && device < devices(); }

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"}};

const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText kUnknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? kUnknown : *found;
}

int blocks_of_multiprocessor(const KernelFacts& facts, int threads, size_t dynamic_shared) {
  const int shared = facts.static_shared + static_cast<int>(dynamic_shared) + 1024;
  return std::min({kThreadsOfMultiprocessor / threads, kSharedOfMultiprocessor / shared, 32});
}

}  // namespace

int multiprocessors() {
  static const int count = from_environment("MEGAMLA_PTX_MULTIPROCESSORS", 132);
  return count;
}

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace ptx::runtime

using namespace ptx::runtime;

extern "C" {

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* CUDARTAPI cudaGetErrorString(cudaError_t error) { return text_of(error).text; }
cudaError_t CUDARTAPI cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t CUDARTAPI cudaPeekAtLastError() { return last_error; }

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  *count = devices();
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaSetDevice(int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  *p = {};
  std::strncpy(p->name, "PTX interpreter", sizeof(p->name) - 1);
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = multiprocessors();
  p->totalGlobalMem = size_t{141} << 30;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = kMostSharedOfBlock;
  p->sharedMemPerMultiprocessor = kSharedOfMultiprocessor;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = kThreadsOfMultiprocessor;
  p->maxBlocksPerMultiProcessor = 32;
  p->l2CacheSize = 50 << 20;
  for (int d = 0; d < 3; ++d) {
    p->maxThreadsDim[d] = d == 2 ? 64 : 1024;
    p->maxGridSize[d] = d == 0 ? 0x7fffffff : 65535;
  }
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors();
      return cudaSuccess;
    case cudaDevAttrClockRate:
      *value = 1980000;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostSharedOfBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedOfMultiprocessor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrClusterLaunch:
    case cudaDevAttrCooperativeLaunch:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      return cudaSuccess;
    default:
      return report(cudaErrorNotSupported);
  }
}
cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* text, int bytes, int) {
  std::strncpy(text, "none", static_cast<size_t>(bytes));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* a, const void* function) {
  KernelFacts facts;
  if (const cudaError_t error = kernel_facts(function, &facts); error != cudaSuccess) return report(error);
  *a = {};
  a->sharedSizeBytes = static_cast<size_t>(facts.static_shared);
  a->localSizeBytes = static_cast<size_t>(facts.local_bytes);
  a->maxThreadsPerBlock = facts.most_threads;
  a->numRegs = std::min(255, 65536 / facts.most_threads);
  a->ptxVersion = a->binaryVersion = 90;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                             int threads, size_t dynamic_shared,
                                                                             unsigned) {
  KernelFacts facts;
  if (const cudaError_t error = kernel_facts(function, &facts); error != cudaSuccess) return report(error);
  *blocks = blocks_of_multiprocessor(facts, threads, dynamic_shared);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                    size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_shared, 0);
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                                     const cudaLaunchConfig_t* config) {
  KernelFacts facts;
  if (const cudaError_t error = kernel_facts(function, &facts); error != cudaSuccess) return report(error);
  int size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& value = config->attrs[i].val.clusterDim;
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      size = static_cast<int>(value.x * value.y * value.z);
  }
  const auto threads = static_cast<int>(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  const int blocks = blocks_of_multiprocessor(facts, threads, config->dynamicSmemBytes);
  if (size < 1 || size > facts.most_cluster) return report(cudaErrorInvalidClusterSize);
  // What an H200 says of clusters of n blocks that take a multiprocessor each.
  constexpr int kOfH200[] = {0, 132, 66, 42, 30, 24, 20, 16, 15, 8, 8, 8, 8, 8, 8, 7, 7};
  *clusters = multiprocessors() == 132 && blocks == 1 ? kOfH200[size] : multiprocessors() * blocks / size;
  return cudaSuccess;
}

}  // extern "C"
