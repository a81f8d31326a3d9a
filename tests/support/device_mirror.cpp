#include "support/device_mirror.hpp"

#include <gtest/gtest.h>

#if MEGAMLA_HAVE_CUDA
#include "cuda/launch.hpp"
#endif

namespace megamla::test {

#if MEGAMLA_HAVE_CUDA
namespace {

void expect_ok(cudaError_t error, const char* what) {
  EXPECT_EQ(error, cudaSuccess) << what << cudaGetErrorString(error);
}

}  // namespace

std::string gpu_missing() { return cuda::check_device("tests", 0).message(); }

DeviceMirror::~DeviceMirror() {
  for (void* p : allocations_) cudaFree(p);
}

void* DeviceMirror::allocate(int64_t bytes) {
  void* p = nullptr;
  expect_ok(cudaMalloc(&p, static_cast<size_t>(bytes)), "cudaMalloc: ");
  allocations_.push_back(p);
  return p;
}

void* DeviceMirror::translate(void* host) {
  for (const Copy& copy : copies_) {
    const ptrdiff_t offset = static_cast<char*>(host) - copy.host.begin;
    if (offset >= 0 && offset <= static_cast<ptrdiff_t>(copy.host.bytes)) return copy.device + offset;
  }
  const Span region = HostRegion::around(host);
  if (region.bytes == 0) {
    ADD_FAILURE() << "a tensor outside of every registered buffer";
    return nullptr;
  }
  // As far from a 256-byte boundary as on the host: alignment is part of what a test asks.
  constexpr uintptr_t kAlignment = 256;
  char* device = static_cast<char*>(allocate(static_cast<int64_t>(region.bytes + kAlignment))) +
                 reinterpret_cast<uintptr_t>(region.begin) % kAlignment;
  expect_ok(cudaMemcpy(device, region.begin, region.bytes, cudaMemcpyHostToDevice), "copy to the GPU: ");
  copies_.push_back({region, device});
  return device + (static_cast<char*>(host) - region.begin);
}

void DeviceMirror::give_back() {
  expect_ok(cudaDeviceSynchronize(), "kernels: ");
  for (const Copy& copy : copies_) {
    expect_ok(cudaMemcpy(copy.host.begin, copy.device, copy.host.bytes, cudaMemcpyDeviceToHost), "copy back: ");
  }
}
#else
std::string gpu_missing() { return "this build has no CUDA"; }
DeviceMirror::~DeviceMirror() = default;
void* DeviceMirror::allocate(int64_t) { return nullptr; }
void* DeviceMirror::translate(void* host) { return host; }
void DeviceMirror::give_back() { ADD_FAILURE() << gpu_missing(); }
#endif

void DeviceMirror::take(megamla_tensor& tensor) {
  if (tensor.ndim == 0) return;
  tensor.cuda_device = 0;
  if (tensor.data != nullptr) tensor.data = translate(tensor.data);
}

void DeviceMirror::take(megamla_kv_cache& cache) {
  if (cache.format == MEGAMLA_KV_NONE) return;
  cache.cuda_device = 0;
  if (cache.data != nullptr) cache.data = translate(cache.data);
}

}  // namespace megamla::test
