// Attention of one row's query over one segment of its keys.
#pragma once

#include "core/attention_view.hpp"
#include "core/status.hpp"
#include "cpu/attention/row_scratch.hpp"

namespace megamla::cpu::attention {

// scratch.q and scratch.scales hold the row's query. Takes the segment's `size` keys, at least 1, from `row`;
// `next_row` is the row that this thread is likely to take next, whose first keys are fetched early (-1: none).
Status attend_segment(Multiplier multiplier, const AttentionView& view, int64_t size, KeyCursor* row, int64_t next_row,
                      const RowScratch& scratch, const Partial& result);

}  // namespace megamla::cpu::attention
