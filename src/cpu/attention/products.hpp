// The two products of attention, by whatever multiplies here.
#pragma once

#include <cstdint>

#include "core/status.hpp"

namespace megamla::cpu::attention {

enum class Multiplier {
  kAvx512Bf16,  // cpu/attention/products_avx512.hpp
  kGemmBf16,    // cpu/gemm.hpp
  kGemmF32
};

// Bytes of a value of q, keys and weights.
constexpr int64_t element_size(Multiplier multiplier) { return multiplier == Multiplier::kGemmF32 ? 4 : 2; }

// Elements between key rows of a tile: rows 1 KiB apart would all fall on the same few sets of an L1 cache.
constexpr int64_t kKeyStride = 512 + 32;

// scores [heads, count] (rows `score_stride` apart) = q [heads, 512] * keys [count, 512]^T. count % 16 == 0.
Status multiply_scores(Multiplier multiplier, const void* q, int64_t heads, const void* keys, int64_t count,
                       float* scores, int64_t score_stride);

// out [heads, 512] = or += weights [heads, count] (rows `weight_stride` apart) * keys. `product` [heads, 512] is
// scratch.
Status multiply_weights(Multiplier multiplier, const void* weights, int64_t weight_stride, int64_t heads,
                        const void* keys, int64_t count, bool accumulate, float* product, float* out);

}  // namespace megamla::cpu::attention
