// Where a slot's bytes lie in a paged cache: contract section 3, planar and interleaved, in 64 bits throughout.
#pragma once

#include <cstdint>

#include "format/chunked.hpp"
#include "format/kv_record.hpp"

namespace megamla::format {

template <class Byte>
struct SlotBytes {
  Byte* data;
  Byte* scale;
};

// Bytes of the records of one page, and those of a page as vLLM pads it.
MEGAMLA_HD constexpr int64_t page_bytes(megamla_kv_format kind, int64_t page_size) {
  return page_size * record_bytes(kind);
}
MEGAMLA_HD constexpr int64_t padded_page_bytes(megamla_kv_format kind, int64_t page_size) {
  return round_up(page_bytes(kind, page_size), page_alignment(kind));
}

// Both layouts put the bytes of row r of a page at begin + r * step.
//   planar:      all data rows, then all scale rows
//   interleaved: record after record, scales right after their data
struct PageGeometry {
  int64_t data_step;
  int64_t scale_begin;  // data begins at 0
  int64_t scale_step;
};
MEGAMLA_HD constexpr PageGeometry page_geometry(megamla_kv_format kind, megamla_page_layout layout, int64_t page_size) {
  const int64_t data = data_bytes(kind);
  const int64_t scale = scale_bytes(kind);
  if (layout == MEGAMLA_PAGE_INTERLEAVED) return {data + scale, data, data + scale};
  return {data, page_size * data, scale};
}
MEGAMLA_HD constexpr PageGeometry page_geometry(const megamla_kv_cache& cache) {
  return page_geometry(static_cast<megamla_kv_format>(cache.format), static_cast<megamla_page_layout>(cache.layout),
                       cache.page_size);
}

MEGAMLA_HD constexpr int64_t num_slots(const megamla_kv_cache& cache) { return cache.num_pages * cache.page_size; }

// Row `row` of page `page`; both must be within the cache.
MEGAMLA_HD inline SlotBytes<uint8_t> row_bytes(const megamla_kv_cache& cache, const PageGeometry& geometry,
                                               int64_t page, int64_t row) {
  uint8_t* begin = static_cast<uint8_t*>(cache.data) + page * cache.page_stride;
  return {begin + row * geometry.data_step, begin + geometry.scale_begin + row * geometry.scale_step};
}
// `slot` must be in [0, num_slots).
MEGAMLA_HD inline SlotBytes<uint8_t> slot_bytes(const megamla_kv_cache& cache, int64_t slot) {
  return row_bytes(cache, page_geometry(cache), slot / cache.page_size, slot % cache.page_size);
}

}  // namespace megamla::format
