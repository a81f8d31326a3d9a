// The two FP8 casts of format/output_cast.hpp over many groups: the same bytes.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cpu {

// Groups of 32 values that follow each other -> codes, those of group g at data + g * data_stride, and one scale byte
// each.
void cast_output_groups(const float* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales);
void cast_output_groups(const format::Bf16* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales);

// Values are rounded to bf16 first.
void cast_mxfp8_groups(const float* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales);
void cast_mxfp8_groups(const format::Bf16* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales);

}  // namespace megamla::cpu
