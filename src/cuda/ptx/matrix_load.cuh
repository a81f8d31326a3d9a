// Shared memory to the registers of matrix operands.
#pragma once

#include <cstdint>

namespace megamla::cuda::ptx {

// Four matrices of 8 rows of 16 bytes; lane 8i + r says where row r of matrix i lies. Lane l gets bytes 4 (l % 4) ..
// of row l / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t row, uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(row)
               : "memory");
}
// Likewise of 16-bit elements; lane l gets rows 2 (l % 4) and the next of column l / 4 of each.
__device__ __forceinline__ void load_matrices_transposed(uint32_t row, uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

}  // namespace megamla::cuda::ptx
