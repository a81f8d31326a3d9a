// How a row's keys are divided: pure functions of their number.
#pragma once

#include <algorithm>
#include <cstdint>

#include "format/chunked.hpp"

namespace megamla::cpu::attention {

constexpr int64_t kSegmentKeys = 384;  // what one thread takes of a row when threads outnumber rows
constexpr int64_t kTileKeys = 192;     // decoded at a time: 192 KiB of bf16, so that a tile stays in a 1 MiB L2
constexpr int64_t kKeyGranule = 16;    // tiles are padded to it with zero keys

struct KeyRange {
  int64_t begin;
  int64_t end;
  constexpr int64_t size() const { return end - begin; }
};

// Part i of `keys` keys in as few even parts of at most `largest` as will do; parts begin at multiples of `granule`,
// which divides `largest`.
constexpr int64_t num_parts(int64_t keys, int64_t largest) { return (keys + largest - 1) / largest; }
constexpr KeyRange part(int64_t keys, int64_t largest, int64_t granule, int64_t i) {
  const int64_t parts = num_parts(keys, largest);
  const int64_t each = format::round_up((keys + parts - 1) / parts, granule);
  return {std::min(i * each, keys), std::min((i + 1) * each, keys)};
}

constexpr int64_t num_segments(int64_t keys) { return num_parts(keys, kSegmentKeys); }
constexpr KeyRange segment(int64_t keys, int64_t i) { return part(keys, kSegmentKeys, 32, i); }
constexpr int64_t num_tiles(int64_t segment_keys) { return num_parts(segment_keys, kTileKeys); }
constexpr KeyRange tile(int64_t segment_keys, int64_t i) { return part(segment_keys, kTileKeys, kKeyGranule, i); }

// The order in which threads take whole rows, as they become free: those with more than twice the mean number of keys
// first, so that none of them is left over for one thread when the others are done.
struct RowOrder {
  int64_t rows;
  int64_t keys;  // of all rows

  int64_t steps() const { return 2 * rows; }
  // The row of step i; -1: none, it has its place in the other half of the steps. keys_of(t): keys of row t.
  template <class KeysOf>
  int64_t row(int64_t i, KeysOf&& keys_of) const {
    const int64_t t = i < rows ? i : i - rows;
    const bool is_long = keys_of(t) > 2 * keys / rows;
    return is_long == (i < rows) ? t : -1;
  }
};

}  // namespace megamla::cpu::attention
