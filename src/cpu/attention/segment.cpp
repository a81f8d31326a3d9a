#include "cpu/attention/segment.hpp"

#include <algorithm>

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;

// The segment's keys, by their place among the row's valid ones.
void collect_keys(const AttentionView& view, int64_t t, KeyRange range, KeyRef* keys) {
  int64_t place = 0;
  view.for_each_key(t, [&](const KeySource& source, int64_t slot) {
    if (place >= range.begin && place < range.end) keys[place - range.begin] = {&source, slot};
    ++place;
  });
}

// The keys that this thread will want right after the segment's: the row's next ones, else the first of the row after
// it. They are only fetched, so a guess that is wrong costs nothing but bandwidth.
int64_t collect_keys_ahead(const AttentionView& view, int64_t t, int64_t end, int64_t keys, int64_t next_row,
                           KeyRef* out) {
  const bool same_row = end < keys;
  if (!same_row && (next_row < 0 || next_row >= view.tokens())) return 0;
  const KeyRange wanted = same_row ? KeyRange{end, std::min(keys, end + kTileKeys)} : KeyRange{0, kTileKeys};
  int64_t place = 0;
  view.for_each_key(same_row ? t : next_row, [&](const KeySource& source, int64_t slot) {
    if (place >= wanted.begin && place < wanted.end) out[place - wanted.begin] = {&source, slot};
    ++place;
  });
  return std::clamp<int64_t>(place - wanted.begin, 0, wanted.size());
}

// Scores to weights, head by head; rescales what earlier tiles accumulated where a head's shift rose. The keys of the
// tile after this one are fetched in between, a few per head.
void weigh_tile(Multiplier multiplier, const RowScratch& scratch, int64_t heads, int64_t count, int64_t padded,
                bool first, KeyRange next, const Partial& result) {
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t fetched = next.begin + next.size() * head / heads;
    fetch_keys(scratch.keys + fetched, next.begin + next.size() * (head + 1) / heads - fetched);
    void* weights = static_cast<char*>(scratch.weights) + head * kTileKeys * element_size(multiplier);
    const float factor = weigh_scores(multiplier, scratch.scores + head * kTileKeys, count, padded,
                                      scratch.scales[head], result, head, weights);
    if (!first && factor != 1.0F) scale_row(factor, kDims, result.out + head * kDims);
  }
}

}  // namespace

Status attend_segment(Multiplier multiplier, const AttentionView& view, int64_t t, int64_t keys, int64_t index,
                      int64_t next_row, const RowScratch& scratch, const Partial& result) {
  const int64_t heads = view.live_heads;
  const KeyRange range = segment(keys, index);
  collect_keys(view, t, range, scratch.keys);
  const int64_t ahead = collect_keys_ahead(view, t, range.end, keys, next_row, scratch.keys + range.size());
  start_partial(result, heads);
  for (int64_t i = 0; i < num_tiles(range.size()); ++i) {
    const KeyRange part = tile(range.size(), i);
    const int64_t padded = format::round_up(part.size(), kKeyGranule);
    load_keys(multiplier, scratch.keys + part.begin, part.size(), padded, scratch.tile);
    MEGAMLA_RETURN_IF_ERROR(
        multiply_scores(multiplier, scratch.q, heads, scratch.tile, padded, scratch.scores, kTileKeys));
    const bool last = i + 1 == num_tiles(range.size());
    const KeyRange next = last ? KeyRange{range.size(), range.size() + ahead} : tile(range.size(), i + 1);
    weigh_tile(multiplier, scratch, heads, part.size(), padded, i == 0, next, result);
    MEGAMLA_RETURN_IF_ERROR(multiply_weights(multiplier, scratch.weights, kTileKeys, heads, scratch.tile, padded, i > 0,
                                             scratch.product, result.out));
  }
  return {};
}

}  // namespace megamla::cpu::attention
