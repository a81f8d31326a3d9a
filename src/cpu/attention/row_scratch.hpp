// A thread's memory while it works on a row, carved out of the caller's workspace.
#pragma once

#include "cpu/attention/key_rows.hpp"
#include "cpu/attention/key_split.hpp"
#include "cpu/attention/softmax.hpp"
#include "cpu/scratch.hpp"
#include "format/kv_record.hpp"

namespace megamla::cpu::attention {

struct RowScratch {
  void* q;         // [heads, 512]
  float* scales;   // [heads]
  KeyRef* keys;    // one segment's, then those of the tile after it
  void* tile;      // [kTileKeys, kKeyStride]
  float* scores;   // [heads, kTileKeys]
  void* weights;   // [heads, kTileKeys]
  float* product;  // [heads, 512]; where the multiplier cannot accumulate
  Partial segment;
  Partial row;
};

inline Partial take_partial(Scratch& scratch, int64_t heads) {
  Partial p;
  p.out = scratch.take<float>(heads * format::kHeadDim);
  p.shift = scratch.take<float>(heads);
  p.sum = scratch.take<float>(heads);
  p.largest = scratch.take<float>(heads);
  return p;
}

inline RowScratch take_row_scratch(Scratch& scratch, Multiplier multiplier, int64_t heads) {
  const int64_t element = element_size(multiplier);
  RowScratch r;
  r.q = scratch.take<char>(heads * format::kHeadDim * element);
  r.scales = scratch.take<float>(heads);
  r.keys = scratch.take<KeyRef>(kSegmentKeys + kTileKeys);
  r.tile = scratch.take<char>(kTileKeys * kKeyStride * element);
  r.scores = scratch.take<float>(heads * kTileKeys);
  r.weights = scratch.take<char>(heads * kTileKeys * element);
  r.product = multiplier == Multiplier::kAvx512Bf16 ? nullptr : scratch.take<float>(heads * format::kHeadDim);
  r.segment = take_partial(scratch, heads);
  r.row = take_partial(scratch, heads);
  return r;
}

}  // namespace megamla::cpu::attention
