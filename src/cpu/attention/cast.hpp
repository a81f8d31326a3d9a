// format::cast_output_group of many groups: the same bytes.
#pragma once

#include <cstdint>

#include "cpu/attention/products.hpp"

namespace megamla::cpu::attention {

// Groups of 32 values that follow each other -> codes, `data_stride` bytes apart, and one scale byte each.
void cast_output_groups(Multiplier multiplier, const float* x, int64_t groups, uint8_t* data, int64_t data_stride,
                        uint8_t* scales);

}  // namespace megamla::cpu::attention
