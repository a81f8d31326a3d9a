// Memory of the device is memory of the host that kernels may touch.
#include "../memory.hpp"

#include <cstdlib>
#include <cstring>

#include "runtime.hpp"

using namespace ptx::runtime;

namespace {

bool is_live(const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  return bytes == 0 || ptx::Memory::device().find(address).holds(address, address + bytes);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((to_device && !is_live(to, bytes)) || (from_device && !is_live(from, bytes))) return cudaErrorInvalidValue;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = ptx::Memory::device().allocate(bytes);
  return report(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t CUDARTAPI cudaFree(void* pointer) {
  if (pointer == nullptr || ptx::Memory::device().release(pointer)) return cudaSuccess;
  return report(cudaErrorInvalidValue);
}
cudaError_t CUDARTAPI cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t CUDARTAPI cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t CUDARTAPI cudaMallocHost(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  return report(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t CUDARTAPI cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  ptx::Memory::device().add(pointer, bytes);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaHostUnregister(void* pointer) {
  ptx::Memory::device().remove(pointer);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{141} << 30;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return report(copy(to, from, bytes, kind));
}
cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return report(submit(stream, [=] { return copy(to, from, bytes, kind); }));
}
cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return report(submit(stream, [=] {
    if (!is_live(to, bytes)) return cudaErrorInvalidValue;
    std::memset(to, value, bytes);
    return cudaSuccess;
  }));
}
cudaError_t CUDARTAPI cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t rows,
                                        cudaStream_t stream) {
  return report(submit(stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      auto* row = static_cast<char*>(to) + r * pitch;
      if (!is_live(row, width)) return cudaErrorInvalidValue;
      std::memset(row, value, width);
    }
    return cudaSuccess;
  }));
}
cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                        size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  return report(submit(stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      const cudaError_t error =
          copy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, width, kind);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }));
}
cudaError_t CUDARTAPI cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
