// Elements of matrix operands: several in a register of 32 bits.
#pragma once

#include "numbers.hpp"

namespace ptx {

struct Bf16Pair {
  static constexpr int kPerRegister = 2;
  static constexpr int kBytes = 2;
  static float get(uint32_t bits, int i) { return bf16_to_float(bits >> (16 * i) & 0xffff); }
};
struct F16Pair {
  static constexpr int kPerRegister = 2;
  static constexpr int kBytes = 2;
  static float get(uint32_t bits, int i) { return f16_to_float(bits >> (16 * i) & 0xffff); }
};
struct E4m3Four {
  static constexpr int kPerRegister = 4;
  static constexpr int kBytes = 1;
  static float get(uint32_t bits, int i) { return e4m3_to_float(bits >> (8 * i) & 0xff); }
};
struct E5m2Four {
  static constexpr int kPerRegister = 4;
  static constexpr int kBytes = 1;
  static float get(uint32_t bits, int i) { return e5m2_to_float(bits >> (8 * i) & 0xff); }
};

}  // namespace ptx
