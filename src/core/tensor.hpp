// Typed access to megamla_tensor views that validation has already accepted.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "megamla/types.h"

namespace megamla {

inline bool present(const megamla_tensor& t) { return t.ndim > 0; }
inline bool present(const megamla_kv_cache& c) { return c.format != MEGAMLA_KV_NONE; }

// A tensor without elements may have no memory, and strides that mean nothing: no address is taken from it.
inline bool is_empty(const megamla_tensor& t) {
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return true;
  }
  return false;
}

template <class T>
T* data(const megamla_tensor& t) {
  return static_cast<T*>(t.data);
}

// Element (i), (i, j), (i, j, k) of a strided view.
template <class T>
T& at(const megamla_tensor& t, int64_t i) {
  return data<T>(t)[i * t.stride[0]];
}
template <class T>
T& at(const megamla_tensor& t, int64_t i, int64_t j) {
  return data<T>(t)[i * t.stride[0] + j * t.stride[1]];
}
template <class T>
T& at(const megamla_tensor& t, int64_t i, int64_t j, int64_t k) {
  return data<T>(t)[i * t.stride[0] + j * t.stride[1] + k * t.stride[2]];
}

// Row i of a matrix; null where the matrix has no columns.
template <class T>
T* row_of(const megamla_tensor& t, int64_t i) {
  return is_empty(t) ? nullptr : &at<T>(t, i);
}

// An I32 or I64 index tensor, element i, as 64 bits.
inline int64_t index_at(const megamla_tensor& t, int64_t i) {
  return t.dtype == MEGAMLA_I64 ? at<const int64_t>(t, i) : at<const int32_t>(t, i);
}

// A C-contiguous host view.
inline megamla_tensor host_tensor(void* data, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  megamla_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.cuda_device = -1;
  for (int64_t extent : shape) t.shape[t.ndim++] = extent;
  int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    t.stride[d] = stride;
    stride *= t.shape[d];
  }
  return t;
}

// Rows begin..end-1 of the first dimension ("token slice"): same strides, so a slice of an output pair keeps its
// packing. A slice without elements starts where the tensor does: nobody checked its offset.
inline megamla_tensor slice(megamla_tensor t, int64_t begin, int64_t end) {
  if (t.data != nullptr && begin < end && !is_empty(t)) {
    t.data = static_cast<char*>(t.data) + begin * t.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  }
  t.shape[0] = end - begin;
  return t;
}

}  // namespace megamla
