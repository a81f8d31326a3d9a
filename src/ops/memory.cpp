#include "ops/memory.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "cuda/memory.hpp"

namespace megamla::ops {
namespace {

constexpr std::align_val_t kAlignment{256};

int64_t element_bytes(const megamla_tensor& t) { return megamla_dtype_size(static_cast<megamla_dtype>(t.dtype)); }
int64_t row_bytes(const megamla_tensor& t) {
  int64_t bytes = element_bytes(t);
  for (int d = 1; d < t.ndim; ++d) bytes *= t.shape[d];
  return bytes;
}
int64_t row_pitch(const megamla_tensor& t) {
  // A single row may have any stride.
  return t.shape[0] > 1 ? t.stride[0] * element_bytes(t) : row_bytes(t);
}

}  // namespace

Memory::Memory(Memory&& other) noexcept
    : cuda_device_(other.cuda_device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  release();
  cuda_device_ = other.cuda_device_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Memory::release() noexcept {
#if MEGAMLA_HAVE_CUDA
  if (cuda_device_ >= 0) {
    cuda::release(cuda_device_, data_);
  } else
#endif
  {
    ::operator delete(data_, kAlignment);
  }
  data_ = nullptr;
  bytes_ = 0;
}

Status Memory::allocate(int32_t cuda_device, int64_t bytes) {
  if (data_ != nullptr && cuda_device_ == cuda_device && bytes_ == bytes) return {};
  release();
  cuda_device_ = cuda_device;
#if MEGAMLA_HAVE_CUDA
  if (cuda_device >= 0) {
    MEGAMLA_RETURN_IF_ERROR(cuda::allocate(cuda_device, bytes, &data_));
  } else
#endif
  {
    data_ = ::operator new(static_cast<size_t>(bytes), kAlignment);
  }
  bytes_ = bytes;
  return {};
}

Status Memory::write(int64_t offset, const void* from, int64_t count) {
#if MEGAMLA_HAVE_CUDA
  if (cuda_device_ >= 0) return cuda::upload(cuda_device_, static_cast<char*>(data_) + offset, from, count);
#endif
  if (count > 0) std::memcpy(static_cast<char*>(data_) + offset, from, static_cast<size_t>(count));
  return {};
}

Status clear_rows(const megamla_tensor& t, [[maybe_unused]] const megamla_exec& exec) {
  if (is_empty(t)) return {};
  const int64_t width = row_bytes(t);
#if MEGAMLA_HAVE_CUDA
  if (t.cuda_device >= 0) return cuda::clear_rows(t.cuda_device, exec.stream, t.data, row_pitch(t), width, t.shape[0]);
#endif
  for (int64_t row = 0; row < t.shape[0]; ++row)
    std::memset(data<char>(t) + row * row_pitch(t), 0, static_cast<size_t>(width));
  return {};
}

Status copy_rows(const megamla_tensor& from, const megamla_tensor& to, [[maybe_unused]] const megamla_exec& exec) {
  if (is_empty(from)) return {};
  const int64_t width = row_bytes(from);
#if MEGAMLA_HAVE_CUDA
  if (from.cuda_device >= 0) {
    return cuda::copy_rows(from.cuda_device, exec.stream, to.data, row_pitch(to), from.data, row_pitch(from), width,
                           from.shape[0]);
  }
#endif
  for (int64_t row = 0; row < from.shape[0]; ++row) {
    std::memcpy(data<char>(to) + row * row_pitch(to), data<const char>(from) + row * row_pitch(from),
                static_cast<size_t>(width));
  }
  return {};
}

}  // namespace megamla::ops
