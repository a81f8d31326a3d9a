// Dot products of FP8 weight rows with a few bf16 tokens: the codes are widened in registers, so the weights are read
// once, as bytes. Runs where has_avx512_vbmi() of cpu/widen_avx512.hpp.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"

namespace megamla::cpu::linear {

struct RowDots {
  const uint8_t* codes;   // [rows, in]
  const uint32_t* steps;  // row r: steps + r * step_stride, one per 32 columns; stride 0: all rows share them
  int64_t step_stride;
  int64_t rows;
  int64_t in;             // a multiple of 32
  const format::Bf16* x;  // [tokens], ldx apart
  int64_t ldx;
  int64_t tokens;
  float* y;  // y[token * ldy + row]
  int64_t ldy;
};

// The steps of UE8M0 scales, which multiply a bf16 value by being added to its bits. False where one is too large or
// too small for that.
bool scale_steps(const uint8_t* scales, int64_t count, uint32_t* steps);

// Each result is summed in one order, whatever rows and tokens it is computed with.
void row_dots_avx512(const RowDots& d);

}  // namespace megamla::cpu::linear
