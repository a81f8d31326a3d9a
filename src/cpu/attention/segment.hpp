// Attention of one row's query over one segment of its keys.
#pragma once

#include "core/attention_view.hpp"
#include "core/status.hpp"
#include "cpu/attention/row_scratch.hpp"

namespace megamla::cpu::attention {

// scratch.q and scratch.scales hold the row's query. `keys` is the row's number of valid keys, at least 1; `next_row`
// the row that this thread is likely to take next, whose first keys are fetched early (-1: none).
Status attend_segment(Multiplier multiplier, const AttentionView& view, int64_t t, int64_t keys, int64_t index,
                      int64_t next_row, const RowScratch& scratch, const Partial& result);

}  // namespace megamla::cpu::attention
