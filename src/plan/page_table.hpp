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

struct PageRow {
  int64_t page;  // -1: no page backs the row
  int64_t row;
};

// local / page_size and what is left, local >= 0. Nearly always both are 32-bit numbers, which a GPU divides much
// faster.
MEGAMLA_HD constexpr PageRow divide_by_page(int64_t local, int64_t page_size) {
  if (((local | page_size) >> 32) != 0) return {local / page_size, local % page_size};
  const auto row = static_cast<uint32_t>(local);
  const auto size = static_cast<uint32_t>(page_size);
  const uint32_t page = row / size;
  return {page, row - page * size};
}

// Where the request's row `local` is.
MEGAMLA_HD constexpr PageRow page_row_of(const PageTable& table, int64_t local) {
  constexpr PageRow kNone{-1, 0};
  if (local < 0) return kNone;
  const PageRow column = divide_by_page(local, table.page_size);
  if (column.page >= table.columns) return kNone;
  const int64_t page = table.entries[column.page];
  if (page < 0 || page >= table.num_pages) return kNone;
  return {page, column.row};
}

// The same as a slot, or -1.
MEGAMLA_HD constexpr int64_t slot_of(const PageTable& table, int64_t local) {
  const PageRow at = page_row_of(table, local);
  return at.page < 0 ? -1 : at.page * table.page_size + at.row;  // page and page_size are below 2^31
}

// The same as the int32 slot id that attention reads; -1 too where the id does not fit.
MEGAMLA_HD constexpr int32_t slot_id_of(const PageTable& table, int64_t local) {
  const int64_t slot = slot_of(table, local);
  return slot > INT32_MAX ? -1 : static_cast<int32_t>(slot);
}

}  // namespace megamla::plan
