// Slots of the compressed cache that a step's tokens write, ratio 2: contract section 8.
#pragma once

#include "plan/page_table.hpp"
#include "plan/ragged_batch.hpp"

namespace megamla::plan {

// The token at an odd position closes group pos / 2 and writes it to that slot of its request's pages; -1 for the
// others.
constexpr int64_t compressed_slot(const PageTable& table, int64_t position) {
  return position >= 0 && position % 2 == 1 ? slot_of(table, position / 2) : -1;
}

}  // namespace megamla::plan
