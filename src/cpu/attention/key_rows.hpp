// Keys into a tile: records of a paged cache, or gathered bf16 rows, as rows of bf16 or fp32.
#pragma once

#include <cstdint>

#include "core/attention_view.hpp"
#include "cpu/attention/products.hpp"

namespace megamla::cpu::attention {

struct KeyRef {
  const KeySource* source;
  int64_t slot;
};

// Decodes keys[0..count) into tile rows (kKeyStride elements apart) and zeroes rows count..padded.
void load_keys(Multiplier multiplier, const KeyRef* keys, int64_t count, int64_t padded, void* tile);

// Asks for the keys' cache lines.
void fetch_keys(const KeyRef* keys, int64_t count);

}  // namespace megamla::cpu::attention
