// FP8 codes times a power-of-two scale, widened to bf16 or fp32: exact (contract section 2), so a product of widened
// values loses nothing.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cpu {

// count values (a multiple of 32), scales[i] for values 32i .. 32i+31 as fp32 factors.
void widen_e4m3(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out);
void widen_e4m3(const uint8_t* codes, const float* scales, int64_t count, float* out);
void widen_bf16(const format::Bf16* values, int64_t count, float* out);
void narrow_to_bf16(const float* values, int64_t count, format::Bf16* out);

}  // namespace megamla::cpu
