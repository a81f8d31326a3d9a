// Where a slot's bytes lie in a paged cache: contract section 3, planar and interleaved, in 64 bits throughout.
#pragma once

#include <cstdint>

#include "format/kv_record.hpp"

namespace megamla::format {

template <class Byte>
struct SlotBytes {
  Byte* data;
  Byte* scale;
};

// Byte offsets of row `row` of a page from the page's begin.
struct RowOffsets {
  int64_t data;
  int64_t scale;
};
MEGAMLA_HD constexpr RowOffsets row_offsets(megamla_kv_format kind, megamla_page_layout layout, int64_t page_size,
                                            int64_t row) {
  const int64_t data = data_bytes(kind);
  const int64_t scale = scale_bytes(kind);
  if (layout == MEGAMLA_PAGE_INTERLEAVED) return {row * (data + scale), row * (data + scale) + data};
  return {row * data, page_size * data + row * scale};
}

MEGAMLA_HD constexpr int64_t num_slots(const megamla_kv_cache& cache) { return cache.num_pages * cache.page_size; }

// `slot` must be in [0, num_slots).
MEGAMLA_HD inline SlotBytes<uint8_t> slot_bytes(const megamla_kv_cache& cache, int64_t slot) {
  const int64_t page = slot / cache.page_size;
  const RowOffsets offsets =
      row_offsets(static_cast<megamla_kv_format>(cache.format), static_cast<megamla_page_layout>(cache.layout),
                  cache.page_size, slot % cache.page_size);
  uint8_t* begin = static_cast<uint8_t*>(cache.data) + page * cache.page_stride;
  return {begin + offsets.data, begin + offsets.scale};
}

}  // namespace megamla::format
