// The number formats of instructions, as a device rounds them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ptx {

constexpr uint32_t kNanF32 = 0x7fffffff;  // what arithmetic makes of any NaN

inline float canonical(float v) { return v != v ? std::bit_cast<float>(kNanF32) : v; }

inline float bf16_to_float(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
inline uint32_t float_to_bf16(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return v != v ? 0x7fff : rounded;
}

inline float f16_to_float(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16;
  const uint32_t rest = bits & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float magnitude =
      rest < 0x400 ? static_cast<float>(rest) * 0x1p-24F : std::bit_cast<float>((rest << 13) + ((127U - 15U) << 23));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// |v| as a code with `mantissa` bits below the leading one and exponents from `smallest` on, to nearest even; not
// clamped.
inline uint32_t small_code(float v, int mantissa, int smallest) {
  const float magnitude = std::fabs(v);
  const float least = std::bit_cast<float>(static_cast<uint32_t>(127 + smallest) << 23);
  // Subnormals: a sum with 1.5 * 2^23 rounds to an integer.
  const float units = magnitude * std::bit_cast<float>(static_cast<uint32_t>(127 + mantissa - smallest) << 23);
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::min(units, 4096.0F) + 0x1.8p23F) & 0x1fff;
  const int drop = 23 - mantissa;
  uint32_t u = std::bit_cast<uint32_t>(magnitude);
  u += (1U << (drop - 1)) - 1 + (u >> drop & 1);
  const uint32_t normal = (u >> drop) - (static_cast<uint32_t>(126 + smallest) << mantissa);
  return magnitude < least ? subnormal : normal;
}
inline uint32_t sign_of(float v, int bit) { return (std::bit_cast<uint32_t>(v) >> 31) << bit; }

inline uint32_t float_to_f16(float v) {
  const uint32_t code = std::min<uint32_t>(small_code(v, 10, -14), 0x7c00);
  return v != v ? 0x7fff : sign_of(v, 15) | code;
}
inline uint32_t float_to_e4m3(float v) {  // saturates
  const uint32_t code = std::min<uint32_t>(small_code(v, 3, -6), 0x7e);
  return v != v ? 0x7f : sign_of(v, 7) | code;
}
inline uint32_t float_to_e5m2(float v) {
  const uint32_t code = std::min<uint32_t>(small_code(v, 2, -14), 0x7b);
  return v != v ? 0x7f : sign_of(v, 7) | code;
}
inline float e4m3_to_float(uint32_t code) {
  const uint32_t rest = code & 0x7f;
  const float magnitude = rest == 0x7f ? std::bit_cast<float>(0x7fc00000U)
                          : rest < 8   ? static_cast<float>(rest) * 0x1p-9F
                                       : std::bit_cast<float>((rest << 20) + ((127U - 7U) << 23));
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
inline float e5m2_to_float(uint32_t code) { return f16_to_float((code & 0xff) << 8); }

// a * b + c for operands of at most 12 bits, rounded to fp32 so that rounding once more to 16 bits rounds correctly:
// where fp32 is not exact its last bit is odd.
inline float fma_to_odd(float a, float b, float c) {
  const float p = a * b;
  const float s = p + c;
  const float part = s - p;
  const float error = (p - (s - part)) + (c - part);
  const auto bits = std::bit_cast<uint32_t>(s);
  const bool inexact = error > 0 || error < 0;
  const bool outwards = (error > 0) == (s > 0);
  const uint32_t odd = (bits & 1) != 0 ? bits : outwards ? bits + 1 : bits - 1;
  return std::bit_cast<float>(inexact ? odd : bits);
}

struct Bf16 {
  static float widen(uint32_t bits) { return bf16_to_float(bits); }
  static uint32_t narrow(float v) { return float_to_bf16(v); }
};
struct F16 {
  static float widen(uint32_t bits) { return f16_to_float(bits); }
  static uint32_t narrow(float v) { return float_to_f16(v); }
};

struct MinOf {
  template <class T>
  static T apply(T a, T b) {
    const T less = a < b || (a == b && std::signbit(a)) ? a : b;
    return a != a ? b : b != b ? a : less;
  }
};
struct MaxOf {
  template <class T>
  static T apply(T a, T b) {
    const T more = a > b || (a == b && !std::signbit(a)) ? a : b;
    return a != a ? b : b != b ? a : more;
  }
};
template <class Op>
struct NanOr {
  template <class T>
  static T apply(T a, T b) {
    return a != a ? a : b != b ? b : Op::apply(a, b);
  }
};

}  // namespace ptx
