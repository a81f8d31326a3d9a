// The CPU driver of decode_attention and prefill_attention.
//
// A row's valid keys are cut into segments, a segment into tiles; a tile is decoded once, multiplied with all heads,
// put through the softmax and multiplied again. Segments are merged in order. All of this depends on the row alone, so
// its bits depend neither on its batch mates nor on the number of threads, whether a thread takes whole rows or (few
// rows) single segments.
#pragma once

#include "core/attention_view.hpp"
#include "core/status.hpp"
#include "cpu/attention/products.hpp"

namespace megamla::cpu::attention {

Status supports(Multiplier multiplier);
int64_t workspace_size(Multiplier multiplier, const megamla_limits& limits);
Status attend(Multiplier multiplier, const AttentionView& view, const megamla_exec& exec);

}  // namespace megamla::cpu::attention
