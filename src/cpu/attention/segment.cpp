#include "cpu/attention/segment.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;

// The keys that this thread will want right after the segment's: the row's next ones, else the first of the row after
// it. They are only fetched, so a guess that is wrong costs nothing but bandwidth.
int64_t take_keys_ahead(const AttentionView& view, KeyCursor row, int64_t next_row, KeyRef* out) {
  const int64_t count = row.take(kTileKeys, out);
  if (count > 0 || next_row < 0 || next_row >= view.tokens()) return count;
  return KeyCursor(view, next_row).take(kTileKeys, out);
}

// Scores to weights, head by head; rescales what earlier tiles accumulated where a head's shift rose.
void weigh_tile(Multiplier multiplier, const RowScratch& scratch, int64_t heads, int64_t count, int64_t padded,
                bool first, const Partial& result) {
  for (int64_t head = 0; head < heads; ++head) {
    void* weights = static_cast<char*>(scratch.weights) + head * kTileKeys * element_size(multiplier);
    const float factor = weigh_scores(multiplier, scratch.scores + head * kTileKeys, count, padded,
                                      scratch.scales[head], result, head, weights);
    if (!first && factor != 1.0F) scale_row(factor, kDims, result.out + head * kDims);
  }
}

}  // namespace

Status attend_segment(Multiplier multiplier, const AttentionView& view, int64_t size, KeyCursor* row, int64_t next_row,
                      const RowScratch& scratch, const Partial& result) {
  const int64_t heads = view.live_heads;
  row->take(size, scratch.keys);
  const int64_t ahead = take_keys_ahead(view, *row, next_row, scratch.keys + size);
  start_partial(result, heads);
  for (int64_t i = 0; i < num_tiles(size); ++i) {
    const KeyRange part = tile(size, i);
    const int64_t padded = format::round_up(part.size(), kKeyGranule);
    load_keys(multiplier, scratch.keys + part.begin, part.size(), padded, scratch.tile);
    const bool last = i + 1 == num_tiles(size);
    fetch_keys(scratch.keys + part.end, last ? ahead : tile(size, i + 1).size());
    MEGAMLA_RETURN_IF_ERROR(
        multiply_scores(multiplier, scratch.q, heads, scratch.tile, padded, scratch.scores, kTileKeys));
    weigh_tile(multiplier, scratch, heads, part.size(), padded, i == 0, result);
    MEGAMLA_RETURN_IF_ERROR(multiply_weights(multiplier, scratch.weights, kTileKeys, heads, scratch.tile, padded, i > 0,
                                             scratch.product, result.out));
  }
  return {};
}

}  // namespace megamla::cpu::attention
