#include "support/device_mirror.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#if MEGAMLA_HAVE_CUDA
#include "cuda/launch.hpp"
#endif

namespace megamla::test {

#if MEGAMLA_HAVE_CUDA
namespace {

void expect_ok(cudaError_t error, const char* what) {
  EXPECT_EQ(error, cudaSuccess) << what << cudaGetErrorString(error);
}

// Regions of so many bytes are address space, of which little is touched: what is zero need not travel.
constexpr size_t kSparse = size_t{1} << 30;
constexpr size_t kChunk = size_t{1} << 24;

// False where no byte of [begin, begin + bytes) was ever touched: it reads as zeros.
bool is_touched(const char* begin, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(begin) % page;
  std::vector<unsigned char> resident((before + bytes + page - 1) / page);
  if (mincore(const_cast<char*>(begin) - before, before + bytes, resident.data()) != 0) return true;
  return std::any_of(resident.begin(), resident.end(), [](unsigned char c) { return (c & 1U) != 0; });
}

void copy_there(char* device, const Span& host) {
  if (host.bytes < kSparse) {
    expect_ok(cudaMemcpy(device, host.begin, host.bytes, cudaMemcpyHostToDevice), "copy to the GPU: ");
    return;
  }
  expect_ok(cudaMemset(device, 0, host.bytes), "cudaMemset: ");
  for (size_t at = 0; at < host.bytes; at += kChunk) {
    const size_t bytes = std::min(kChunk, host.bytes - at);
    if (!is_touched(host.begin + at, bytes)) continue;
    expect_ok(cudaMemcpy(device + at, host.begin + at, bytes, cudaMemcpyHostToDevice), "copy to the GPU: ");
  }
}

void copy_back(const Span& host, const char* device) {
  if (host.bytes < kSparse) {
    expect_ok(cudaMemcpy(host.begin, device, host.bytes, cudaMemcpyDeviceToHost), "copy back: ");
    return;
  }
  std::vector<char> chunk(kChunk);
  const std::vector<char> zeros(kChunk);
  for (size_t at = 0; at < host.bytes; at += kChunk) {
    const size_t bytes = std::min(kChunk, host.bytes - at);
    expect_ok(cudaMemcpy(chunk.data(), device + at, bytes, cudaMemcpyDeviceToHost), "copy back: ");
    const bool changed = is_touched(host.begin + at, bytes) || std::memcmp(chunk.data(), zeros.data(), bytes) != 0;
    if (changed) std::memcpy(host.begin + at, chunk.data(), bytes);
  }
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
  const Span region = HostRegion::around(host);
  if (region.bytes == 0) {
    ADD_FAILURE() << "a tensor outside of every registered buffer";
    return nullptr;
  }
  const ptrdiff_t offset = static_cast<char*>(host) - region.begin;
  // By the region and not by the address: where one region ends, another may begin.
  for (const Copy& copy : copies_) {
    if (copy.host.begin == region.begin) return copy.device + offset;
  }
  // As far from a 256-byte boundary as on the host: alignment is part of what a test asks.
  constexpr uintptr_t kAlignment = 256;
  char* device = static_cast<char*>(allocate(static_cast<int64_t>(region.bytes + kAlignment))) +
                 reinterpret_cast<uintptr_t>(region.begin) % kAlignment;
  copy_there(device, region);
  copies_.push_back({region, device});
  return device + offset;
}

void DeviceMirror::give_back() {
  expect_ok(cudaDeviceSynchronize(), "kernels: ");
  for (const Copy& copy : copies_) copy_back(copy.host, copy.device);
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
