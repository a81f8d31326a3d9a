#include "megamla/page_layout.h"

#include <algorithm>
#include <cmath>

#include "core/c_boundary.hpp"
#include "core/validate.hpp"
#include "format/page.hpp"
#include "format/plausible_group.hpp"

namespace megamla::ops {
namespace {

// Right bytes fit almost without exception, wrong ones by chance: seldom on large pages, often on pages of two records,
// where some rows lie at the same place in both layouts.
constexpr double kFits = 0.95;
constexpr double kMargin = 0.1;

struct Tally {
  int64_t groups = 0;
  int64_t plausible = 0;
  double share() const { return groups == 0 ? 0 : static_cast<double>(plausible) / static_cast<double>(groups); }
};

bool all_are(const uint8_t* bytes, int64_t count, uint8_t value) {
  return std::all_of(bytes, bytes + count, [=](uint8_t byte) { return byte == value; });
}

// A row of a fresh pool: zeros, or the 0xff that caches are often poisoned with.
bool never_written(megamla_kv_format kind, const format::SlotBytes<uint8_t>& row) {
  const uint8_t value = *row.data;
  return (value == 0 || value == 0xff) && all_are(row.data, format::data_bytes(kind), value) &&
         all_are(row.scale, format::scale_bytes(kind), value);
}

template <class Record>
void add_row(Record record, const format::SlotBytes<uint8_t>& row, Tally& tally) {
  if (never_written(Record::kFormat, row)) return;
  for (int group = 0; group < Record::kScaleBytes; ++group) {
    ++tally.groups;
    if (format::plausible_group(record, row.data, row.scale, group)) ++tally.plausible;
  }
}

double score(megamla_kv_cache cache, megamla_page_layout layout, const int64_t* slots, int64_t count) {
  cache.layout = layout;
  Tally tally;
  for (int64_t i = 0; i < count; ++i) {
    const auto row = format::slot_bytes(cache, slots == nullptr ? i : slots[i]);
    if (cache.format == MEGAMLA_KV_NVFP4_288) {
      add_row(format::Nvfp4_288{}, row, tally);
    } else {
      add_row(format::Fp8_528{}, row, tally);
    }
  }
  return tally.share();
}

Status validate(megamla_kv_cache cache, const int64_t* slots, int64_t count) {
  cache.layout = MEGAMLA_PAGE_PLANAR;
  Validator v("page_layout_scores", -1);
  v.cache("cache", cache, {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288});
  v.range("num_slots", count, 0, INT64_MAX);
  v.require(slots != nullptr || count == 0, "slots", "a pointer", "NULL");
  for (int64_t i = 0; v.ok() && i < count; ++i) v.range("slots", slots[i], 0, format::num_slots(cache) - 1);
  return v.status();
}

}  // namespace
}  // namespace megamla::ops

extern "C" megamla_status megamla_page_layout_scores(const megamla_kv_cache* cache, const int64_t* slots,
                                                     int64_t num_slots, double* planar, double* interleaved,
                                                     int32_t* likely) {
  using namespace megamla;
  return guard([&]() -> Status {
    if (cache == nullptr || planar == nullptr || interleaved == nullptr || likely == nullptr) {
      return invalid_argument("page_layout_scores: {}: expected a pointer, got NULL", cache == nullptr    ? "cache"
                                                                                      : planar == nullptr ? "planar"
                                                                                      : interleaved == nullptr
                                                                                          ? "interleaved"
                                                                                          : "likely");
    }
    MEGAMLA_RETURN_IF_ERROR(ops::validate(*cache, slots, num_slots));
    const int64_t count = slots == nullptr ? format::num_slots(*cache) : num_slots;
    *planar = ops::score(*cache, MEGAMLA_PAGE_PLANAR, slots, count);
    *interleaved = ops::score(*cache, MEGAMLA_PAGE_INTERLEAVED, slots, count);
    *likely = -1;
    if (std::max(*planar, *interleaved) >= ops::kFits && std::abs(*planar - *interleaved) >= ops::kMargin)
      *likely = *planar > *interleaved ? MEGAMLA_PAGE_PLANAR : MEGAMLA_PAGE_INTERLEAVED;
    return {};
  });
}
