// The row codecs of format/kv_record.hpp as vector code: the same bytes and bits.
#pragma once

#include <cstdint>

#include "format/kv_record.hpp"
#include "megamla/kv_insert.h"

namespace megamla::cpu {

// x[512] -> data and scale bytes.
void encode_record(format::Fp8_528 record, const float* x, uint8_t* data, uint8_t* scale);
void encode_record(format::Fp8_584 record, const float* x, uint8_t* data, uint8_t* scale);
void encode_record(format::Nvfp4_288 record, const float* x, uint8_t* data, uint8_t* scale);

// data and scale bytes -> 512 values, rounded to bf16.
void decode_record(format::Fp8_528 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out);
void decode_record(format::Fp8_584 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out);
void decode_record(format::Nvfp4_288 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out);

// plan::rotated_latent.
void rotated_latent(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, float* x);

}  // namespace megamla::cpu
