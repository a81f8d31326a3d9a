// A row's query as it meets the keys.
#pragma once

#include "core/attention_view.hpp"
#include "cpu/attention/products.hpp"

namespace megamla::cpu::attention {

// q [live heads, 512] rotated and rounded to bf16 (held as fp32 for kGemmF32); scales[head] takes q.k to base-2 logits.
void load_query(Multiplier multiplier, const AttentionView& view, int64_t t, const float* cos_sin, void* q,
                float* scales);

}  // namespace megamla::cpu::attention
