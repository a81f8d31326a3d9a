// The one door to oneDNN: C = A * B^T or A * B on one thread, in bf16 where the machine multiplies bf16, else in fp32.
//
// Callers divide the work over threads themselves and call this from each: a tile's bits then depend on the tile alone.
#pragma once

#include <compare>
#include <cstdint>

#include "core/status.hpp"

namespace megamla::cpu {

enum class GemmType { kBf16, kF32 };

// What this machine should multiply: kBf16 with AVX512-BF16 or AMX, else kF32.
GemmType native_gemm_type();
inline int64_t gemm_element_size(GemmType type) { return type == GemmType::kBf16 ? 2 : 4; }
const char* gemm_name(GemmType type);  // "onednn_bf16", "onednn_f32"

struct Gemm {
  GemmType type = GemmType::kF32;  // of A and B; C is fp32
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;  // row strides in elements
  bool b_transposed = true;           // B is [n, k] (keys, weight rows); else [k, n]

  auto operator<=>(const Gemm&) const = default;
};

// Thread-safe. Primitives are made once per thread and shape. Errors: RUNTIME_ERROR with oneDNN's message.
Status run_gemm(const Gemm& shape, const void* a, const void* b, float* c);

// Primitives that the calling thread keeps: callers keep the number of their shapes small.
int64_t cached_gemms();

}  // namespace megamla::cpu
