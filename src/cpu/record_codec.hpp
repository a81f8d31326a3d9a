// The row codecs of format/kv_record.hpp as vector code: the same bytes and bits.
#pragma once

#include <cstdint>

#include "format/kv_record.hpp"
#include "megamla/kv_insert.h"

namespace megamla::cpu {

// What kv_insert stores for a latent[512]: plan::rotated_latent, encoded. cos_sin: the token's row, or null.
void insert_record(format::Fp8_528 record, megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                   uint8_t* data, uint8_t* scale);
void insert_record(format::Fp8_584 record, megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                   uint8_t* data, uint8_t* scale);
void insert_record(format::Nvfp4_288 record, megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                   uint8_t* data, uint8_t* scale);

// data and scale bytes -> 512 values, rounded to bf16.
void decode_record(format::Fp8_528 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out);
void decode_record(format::Fp8_584 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out);
void decode_record(format::Nvfp4_288 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out);

}  // namespace megamla::cpu
