// From a row's merged result to the caller's buffers: contract sections 5, 7 and 14.
#pragma once

#include "core/attention_view.hpp"
#include "cpu/attention/softmax.hpp"

namespace megamla::cpu::attention {

// Divides by the sums and sinks, rotates back (cos_sin may be null), casts; writes lse and max_logits where wanted.
// Uses partial.out as scratch.
void write_row(const AttentionView& view, int64_t t, const float* cos_sin, const Partial& partial);

// Zeros, with these lse and max_logits.
void write_zero_row(const AttentionView& view, int64_t t, float lse, float max_logit);

}  // namespace megamla::cpu::attention
