// Which rows kv_insert writes and what they hold before they are encoded: contract section 3.2. Rounded results are
// stored, so this arithmetic is shared by every implementation.
#pragma once

#include "format/bf16.hpp"
#include "format/kv_record.hpp"
#include "format/rope.hpp"
#include "megamla/kv_insert.h"

namespace megamla::plan {

struct InsertRule {
  megamla_kv_writer writer;
  int64_t compress_ratio;  // 1 or 2; compressed writer only
  int64_t num_slots;
  int64_t num_positions;  // rows of the table; -1: no table, no rotation
};

struct InsertTarget {
  int64_t slot;       // -1: nothing is written
  int64_t table_row;  // row of cos_sin
  bool refused;       // nothing is written because the slot or the position is out of range
};

// A negative slot and an open group are no fault: the row is passed over. `position` is not read where the rule needs
// none (window writer, no table).
MEGAMLA_HD constexpr InsertTarget insert_target(const InsertRule& rule, int64_t slot, int64_t position) {
  const bool compressed = rule.writer == MEGAMLA_WRITER_COMPRESSED;
  const bool has_table = rule.num_positions >= 0;
  const int64_t before = compressed ? rule.compress_ratio - 1 : 0;  // positions of a group before its last: 0 or 1
  const bool has_position = (compressed || has_table) && position >= 0;
  const bool open = has_position && (position & before) != before;
  const bool off_table = has_table && position >= rule.num_positions;
  const bool off_list = (compressed || has_table) && (position < 0 || off_table);
  const bool passed_over = slot < 0 || open;
  const bool out_of_range = slot >= rule.num_slots || off_list;
  return {passed_over || out_of_range ? -1 : slot, has_position ? position - before : 0, !passed_over && out_of_range};
}

// The 512 values that are encoded. cos_sin: the token's row of the table, or null for no rotation.
MEGAMLA_HD inline void rotated_latent(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                                      float* x) {
  for (int d = 0; d < format::kHeadDim; ++d) x[d] = to_float(latent[d]);
  if (cos_sin == nullptr) return;
  constexpr int kPairs = format::kRopeDim / 2;
  float* rope = x + format::kNopeDim;
  for (int j = 0; j < kPairs; ++j) {
    const format::Pair y = format::rotate({rope[2 * j], rope[2 * j + 1]}, cos_sin[j], cos_sin[kPairs + j]);
    const bool round = writer == MEGAMLA_WRITER_WINDOW;
    rope[2 * j] = round ? format::round_to_bf16(y.x0) : y.x0;
    rope[2 * j + 1] = round ? format::round_to_bf16(y.x1) : y.x1;
  }
}

}  // namespace megamla::plan
