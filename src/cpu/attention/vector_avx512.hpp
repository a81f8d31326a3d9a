// The element-wise parts of attention on AVX-512: see has_avx512_bf16() in products_avx512.hpp for where they may be
// called. Plain forms of the same: softmax.cpp.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cpu::attention {

// The largest scale * score; NaN does not count.
float largest_logit_avx512(const float* scores, int64_t count, float scale);

// weights = 2^(scale * score - shift) as bf16, zeros from count to padded (a multiple of 16); returns the sum of the
// unrounded ones.
float weigh_logits_avx512(const float* scores, int64_t count, int64_t padded, float scale, float shift,
                          format::Bf16* weights);

}  // namespace megamla::cpu::attention
