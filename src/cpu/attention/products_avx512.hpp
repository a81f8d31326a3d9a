// The two products of attention for few heads, on AVX512-BF16: oneDNN copies the keys into its own order first, which
// pays from some 32 heads on; here the keys are used as they lie.
#pragma once

#include <cstdint>

namespace megamla::cpu::attention {

// True where this machine runs them.
bool has_avx512_bf16();

// q [heads, 512] times keys [count, 512] (rows `key_stride` elements apart) -> scores [heads, count], rows
// `score_stride` apart. heads % 8 == 0, count % 4 == 0. A score's bits depend on its head and key alone.
void scores_avx512(const uint16_t* q, int64_t heads, const uint16_t* keys, int64_t key_stride, int64_t count,
                   float* scores, int64_t score_stride);

// out [heads, 512] (+)= weights [heads, count] times keys; count % 2 == 0. Added to if `accumulate`, else overwritten.
void weigh_avx512(const uint16_t* weights, int64_t weight_stride, int64_t heads, const uint16_t* keys,
                  int64_t key_stride, int64_t count, bool accumulate, float* out);

}  // namespace megamla::cpu::attention
