// Records to bf16 rows on AVX-512: see has_avx512_bf16() in products_avx512.hpp for where it may be called.
#pragma once

#include <cstdint>

#include "format/kv_record.hpp"

namespace megamla::cpu::attention {

void decode_row_avx512(format::Fp8_528, const uint8_t* data, const uint8_t* scale, format::Bf16* out);
void decode_row_avx512(format::Fp8_584, const uint8_t* data, const uint8_t* scale, format::Bf16* out);
void decode_row_avx512(format::Nvfp4_288, const uint8_t* data, const uint8_t* scale, format::Bf16* out);

}  // namespace megamla::cpu::attention
