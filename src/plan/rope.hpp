// The arithmetic of a RoPE table: pure functions of its parameters, shared by the reference and the CPU.
#pragma once

#include <array>

#include "megamla/rope_table.h"

namespace megamla::plan {

// theta^(-2j/64), with YaRN's ramp where factor > 1 (formula: include/megamla/rope_table.h).
std::array<double, 32> rope_inverse_frequencies(const megamla_rope_table_params& params);

// One row: 32 cosines, then 32 sines. EXACT takes the angle in float64 and rounds each result once; FP32 rounds
// position, frequency and angle to fp32 first, as engines do.
void rope_row(const std::array<double, 32>& inv_freq, int64_t position, megamla_rope_angles angles, float* cos_sin);

}  // namespace megamla::plan
