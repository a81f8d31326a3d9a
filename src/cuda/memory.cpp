#include "cuda/memory.hpp"

#include <algorithm>

#include "cuda/launch.hpp"

namespace megamla::cuda {
namespace {

constexpr const char* kOp = "layer";

}  // namespace

Status allocate(int32_t device, int64_t bytes, void** memory) {
  MEGAMLA_RETURN_IF_ERROR(check_device(kOp, device));
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  MEGAMLA_CUDA_CALL(kOp, cudaMalloc(memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  return {};
}

void release(int32_t device, void* memory) noexcept {
  if (memory == nullptr) return;
  const DeviceGuard current(kOp, device);
  (void)cudaFree(memory);
}

Status upload(int32_t device, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return {};
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  MEGAMLA_CUDA_CALL(kOp, cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  return {};
}

Status clear_rows(int32_t device, CUstream_st* stream, void* to, int64_t pitch, int64_t width, int64_t rows) {
  if (width == 0 || rows == 0) return {};
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  MEGAMLA_CUDA_CALL(kOp, cudaMemset2DAsync(to, static_cast<size_t>(pitch), 0, static_cast<size_t>(width),
                                           static_cast<size_t>(rows), stream));
  return {};
}

Status copy_rows(int32_t device, CUstream_st* stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                 int64_t width, int64_t rows) {
  if (width == 0 || rows == 0) return {};
  const DeviceGuard current(kOp, device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  MEGAMLA_CUDA_CALL(
      kOp, cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                             static_cast<size_t>(width), static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, stream));
  return {};
}

}  // namespace megamla::cuda
