// widen_e4m3 to bf16 where the machine has AVX512-VBMI and AVX512-BF16 (Zen 4, Sapphire Rapids, and newer).
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cpu {

bool has_avx512_vbmi();

// As widen_e4m3 of cpu/widen.hpp, bit for bit (NaN of any sign).
void widen_e4m3_avx512(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out);

}  // namespace megamla::cpu
