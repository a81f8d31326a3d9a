// Memory of the host or of a GPU under one interface: what a layer owns, copies and clears itself.
#pragma once

#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"

namespace megamla::ops {

// Owned bytes of a GPU, or of the host for device -1.
class Memory {
 public:
  Memory() = default;
  ~Memory() { release(); }
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  // Of what was there before nothing is left, unless the place and the size are the same.
  Status allocate(int32_t cuda_device, int64_t bytes);
  // `count` bytes of host memory to `offset`; waits.
  Status write(int64_t offset, const void* from, int64_t count);
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  int32_t cuda_device_ = -1;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The rows of a tensor (first dimension; the others contiguous) become 0. In stream order on a GPU.
Status clear_rows(const megamla_tensor& t, const megamla_exec& exec);
// Copies all rows of `from` to those of `to`: same dtype, shape and place.
Status copy_rows(const megamla_tensor& from, const megamla_tensor& to, const megamla_exec& exec);

}  // namespace megamla::ops
