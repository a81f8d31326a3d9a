// Block tables: from a row number of a request to a slot of a paged cache, with every way out of range answered by -1.
#pragma once

#include <cstdint>
#include <limits>

#include "format/host_device.hpp"

namespace megamla::plan {

inline constexpr int64_t kUncheckedPages = std::numeric_limits<int64_t>::max();

// One request's row of a block table.
struct PageTable {
  const int32_t* entries = nullptr;
  int64_t columns = 0;
  int64_t page_size = 1;                // slots per page
  int64_t num_pages = kUncheckedPages;  // an entry at or beyond it names no page
};

// Slot of the request's row `local`, or -1 where no page backs it.
MEGAMLA_HD constexpr int64_t slot_of(const PageTable& table, int64_t local) {
  if (local < 0) return -1;
  const int64_t column = local / table.page_size;
  if (column >= table.columns) return -1;
  const int64_t page = table.entries[column];
  if (page < 0 || page >= table.num_pages) return -1;
  return page * table.page_size + local % table.page_size;  // page and page_size are below 2^31
}

// The same as the int32 slot id that attention reads; -1 too where the id does not fit.
MEGAMLA_HD constexpr int32_t slot_id_of(const PageTable& table, int64_t local) {
  const int64_t slot = slot_of(table, local);
  return slot > INT32_MAX ? -1 : static_cast<int32_t>(slot);
}

}  // namespace megamla::plan
