// Four neighbouring columns of an I32 matrix at a time, and the slots that a block table gives for them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.hpp"
#include "cuda/ptx/sync.cuh"
#include "cuda/vector_access.cuh"
#include "plan/divisor.hpp"

namespace megamla::cuda {

constexpr int kQuad = 4;  // columns of a thread

// Row i of a matrix; a matrix without columns may have no memory at all, and is not read.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
  int columns;
  bool aligned;  // all rows begin at a multiple of 16 bytes

  __device__ T* row(int64_t i) const { return data + i * stride; }
};
template <class T>
Matrix<T> matrix(const megamla_tensor& t) {
  return {data<T>(t), t.stride[0], static_cast<int>(t.shape[1]), rows_aligned(t.data, 4 * t.stride[0])};
}

struct Quad {
  int32_t x[kQuad];
};

// Columns `first` and on of a row; -1 where there are none.
__device__ inline Quad load_quad(const int32_t* row, int first, int columns, bool aligned) {
  if (aligned && first + kQuad <= columns) {
    const int4 quad = *reinterpret_cast<const int4*>(row + first);
    return {{quad.x, quad.y, quad.z, quad.w}};
  }
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.x[i] = first + i < columns ? row[first + i] : -1;
  return quad;
}
__device__ inline void store_quad(int32_t* row, int first, int columns, bool aligned, const Quad& quad) {
  if (aligned && first + kQuad <= columns) {
    __stcg(reinterpret_cast<int4*>(row + first), make_int4(quad.x[0], quad.x[1], quad.x[2], quad.x[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (first + i < columns) row[first + i] = quad.x[i];
  }
}

// A block table. Rows of a request are below 2^31: what a request's rows are called is an int32.
struct Table {
  const int32_t* entries;
  int64_t stride;
  plan::Divisor page_size;
  uint32_t rows;       // of a request: behind them the table ends
  uint32_t num_pages;  // an entry at or beyond it names no page
};
inline Table page_table(const megamla_tensor& block_table, int64_t page_size, int64_t num_pages) {
  constexpr int64_t kAll = int64_t{1} << 31;  // more than any int32
  const int64_t columns = std::min(block_table.shape[1], kAll);
  return {data<const int32_t>(block_table), block_table.stride[0], plan::Divisor(page_size),
          static_cast<uint32_t>(std::min(columns * page_size, kAll)),
          static_cast<uint32_t>(num_pages > 0 ? num_pages : kAll)};  // 0 = not checked
}

// Slots of four rows of a request, as plan::slot_id_of finds them; -1 for all that is not below `rows`. The entries are
// asked for together.
__device__ inline Quad slots_of(const Table& table, const int32_t* entries, const Quad& local, uint32_t rows) {
  uint32_t entry[kQuad];
  uint32_t row[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const auto l = static_cast<uint32_t>(local.x[i]);
    const uint32_t column = table.page_size.quotient(l);
    row[i] = l - column * table.page_size.value;
    entry[i] = static_cast<uint32_t>(ptx::load_if(entries + column, l < rows));
  }
  Quad slots;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const uint64_t slot = uint64_t{entry[i]} * table.page_size.value + row[i];
    slots.x[i] = entry[i] < table.num_pages && slot <= INT32_MAX ? static_cast<int32_t>(slot) : -1;
  }
  return slots;
}

}  // namespace megamla::cuda
