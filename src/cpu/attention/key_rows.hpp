// Keys into a tile: records of a paged cache, or gathered bf16 rows, as rows of bf16 or fp32.
#pragma once

#include <cstdint>

#include "cpu/attention/key_list.hpp"
#include "cpu/attention/products.hpp"

namespace megamla::cpu::attention {

// Decodes keys[0..count) into tile rows (kKeyStride elements apart) and zeroes rows count..padded.
void load_keys(Multiplier multiplier, const KeyRef* keys, int64_t count, int64_t padded, void* tile);

// Asks for the keys' cache lines. Many in one go: most of the time goes into finding their pages, and that overlaps
// only between requests that follow each other.
void fetch_keys(const KeyRef* keys, int64_t count);

}  // namespace megamla::cpu::attention
