// format::cast_output_group for the vector unit: the same bytes.
#pragma once

#include <cstdint>

namespace megamla::cpu::attention {

// 32 values -> 32 e4m3 codes; returns the scale byte.
uint8_t cast_output_group(const float* x, uint8_t* data);

}  // namespace megamla::cpu::attention
