// RoPE of the 64 rotated dims of a head, in place; cos_sin is the position's row of the table.
#pragma once

#include "format/bf16.hpp"

namespace megamla::cpu {

// format::rotate of each pair, rounded to bf16.
void rotate_rope(const float* cos_sin, format::Bf16* rope);
// format::rotate_back of each pair.
void rotate_rope_back(const float* cos_sin, float* rope);

}  // namespace megamla::cpu
