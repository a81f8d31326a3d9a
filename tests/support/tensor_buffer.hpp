// Memory that tests hand to ops: guard bytes on both sides, rows further apart than they are wide if asked for.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "megamla/types.h"
#include "support/host_region.hpp"

namespace megamla::test {

constexpr megamla_device kDevices[] = {MEGAMLA_DEVICE_REFERENCE, MEGAMLA_DEVICE_CPU};
inline const char* device_name(megamla_device device) {
  return device == MEGAMLA_DEVICE_REFERENCE ? "reference" : "cpu";
}
inline megamla_exec exec_on(megamla_device device, int threads = 0) {
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.device = device;
  exec.num_threads = threads;
  return exec;
}

// Bit for bit, NaN and the sign of zero included.
inline bool same_bytes(const void* a, const void* b, int64_t bytes) {
  return std::memcmp(a, b, static_cast<size_t>(bytes)) == 0;
}

class TensorBuffer {
 public:
  static constexpr uint8_t kGuard = 0x5a;
  static constexpr uint8_t kFill = 0xa5;

  // Every byte of the tensor and of its row padding is kFill at first. row_padding: elements between rows (dimension
  // 0).
  TensorBuffer(megamla_dtype dtype, std::initializer_list<int64_t> shape, int64_t row_padding = 0)
      : view_(host_tensor(nullptr, dtype, shape)) {
    if (view_.ndim > 1) view_.stride[0] += row_padding;
    const int64_t elements = view_.ndim == 0 ? 0 : view_.shape[0] * view_.stride[0];
    payload_ = static_cast<size_t>(elements * megamla_dtype_size(dtype));
    memory_.assign(payload_ + 3 * kZone, kGuard);
    // Aligned for what the caller might want to keep in it: caches ask for 16 bytes.
    offset_ = kZone + (kZone - reinterpret_cast<uintptr_t>(memory_.data()) % kZone) % kZone;
    std::memset(memory_.data() + offset_, kFill, payload_);
    view_.data = memory_.data() + offset_;
    region_.emplace(memory_.data(), memory_.size());
  }
  TensorBuffer(const TensorBuffer&) = delete;
  TensorBuffer& operator=(const TensorBuffer&) = delete;

  operator const megamla_tensor&() const { return view_; }  // NOLINT(google-explicit-constructor): an op's argument
  const megamla_tensor& view() const { return view_; }
  template <class T>
  T* as() const {
    return data<T>(view_);
  }
  template <class T>
  T& at(int64_t i) const {
    return megamla::at<T>(view_, i);
  }
  template <class T>
  T& at(int64_t i, int64_t j) const {
    return megamla::at<T>(view_, i, j);
  }
  template <class T>
  T& at(int64_t i, int64_t j, int64_t k) const {
    return megamla::at<T>(view_, i, j, k);
  }
  template <class T>
  void fill(const T& value) {
    for (size_t i = 0; i < payload_ / sizeof(T); ++i) as<T>()[i] = value;
  }
  template <class T>
  void assign(const std::vector<T>& values) {
    ASSERT_LE(values.size() * sizeof(T), payload_);
    if (!values.empty()) std::memcpy(view_.data, values.data(), values.size() * sizeof(T));
  }
  template <class T>
  std::vector<T> values() const {
    return std::vector<T>(as<T>(), as<T>() + payload_ / sizeof(T));
  }
  void refill() { std::memset(view_.data, kFill, payload_); }

  // The whole allocation, guards included.
  std::vector<uint8_t> bytes() const { return memory_; }
  bool guards_intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + payload_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kZone = 256;
  megamla_tensor view_;
  std::vector<uint8_t> memory_;
  std::optional<HostRegion> region_;
  size_t payload_ = 0;
  size_t offset_ = 0;
};

// A workspace of exactly the size that an op asks for.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : memory_(static_cast<size_t>(bytes) + 512, TensorBuffer::kGuard), bytes_(bytes) {
    offset_ = (256 - reinterpret_cast<uintptr_t>(memory_.data()) % 256) % 256;
  }
  void attach(megamla_exec& exec) {
    exec.workspace = memory_.data() + offset_;
    exec.workspace_bytes = bytes_;
  }
  bool guards_intact() const {
    for (size_t i = offset_ + static_cast<size_t>(bytes_); i < memory_.size(); ++i) {
      if (memory_[i] != TensorBuffer::kGuard) return false;
    }
    return true;
  }

 private:
  std::vector<uint8_t> memory_;
  size_t offset_ = 0;
  int64_t bytes_;
};

}  // namespace megamla::test
