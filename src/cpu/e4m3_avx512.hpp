// e4m3 codes to bf16 by table look-up, 64 at a time (AVX512-VBMI). For files that only run where has_avx512_vbmi().
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstdint>

#include "format/bf16.hpp"
#include "format/small_float.hpp"

#define MEGAMLA_AVX512_VBMI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")))

namespace megamla::cpu {

// Set in the values of codes, where bf16 has a bit to spare, unless they are zero or NaN: the others are multiplied by
// a power of two by adding to their exponents.
constexpr uint16_t kFiniteMark = 1;

// The two bytes of the marked bf16 value of each code without its sign.
struct E4m3Bytes {
  alignas(64) std::array<uint8_t, 128> low;
  alignas(64) std::array<uint8_t, 128> high;
};
inline constexpr E4m3Bytes kE4m3Bytes = [] {
  E4m3Bytes bytes{};
  for (uint8_t code = 0; code < 128; ++code) {
    uint16_t bits = format::to_bf16(format::e4m3_to_float(code)).bits;
    if (code != 0 && code != 0x7f) bits |= kFiniteMark;
    bytes.low[code] = static_cast<uint8_t>(bits & 0xffU);
    bytes.high[code] = static_cast<uint8_t>(bits >> 8U);
  }
  return bytes;
}();

struct E4m3Tables {
  __m512i low[2];
  __m512i high[2];
  __m512i order;
  __m512i sign;
};

MEGAMLA_AVX512_VBMI inline E4m3Tables load_e4m3_tables() {
  return {{_mm512_load_si512(kE4m3Bytes.low.data()), _mm512_load_si512(kE4m3Bytes.low.data() + 64)},
          {_mm512_load_si512(kE4m3Bytes.high.data()), _mm512_load_si512(kE4m3Bytes.high.data() + 64)},
          // Quarter i of a register then holds codes 8i .. 8i+7 and 32+8i .. 32+8i+7, which the unpack instructions
          // part.
          _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
          _mm512_set1_epi8(static_cast<char>(0x80))};
}

// codes 0 .. 31 -> first, 32 .. 63 -> second, marked. The look-up ignores a code's sign bit.
MEGAMLA_AVX512_VBMI inline void widen_64(const E4m3Tables& tables, __m512i codes, __m512i* first, __m512i* second) {
  constexpr int kAOrBAndC = 0xf8;
  const __m512i ordered = _mm512_permutexvar_epi64(tables.order, codes);
  const __m512i low = _mm512_permutex2var_epi8(tables.low[0], ordered, tables.low[1]);
  const __m512i magnitude = _mm512_permutex2var_epi8(tables.high[0], ordered, tables.high[1]);
  const __m512i high = _mm512_ternarylogic_epi64(magnitude, ordered, tables.sign, kAOrBAndC);
  *first = _mm512_unpacklo_epi8(low, high);
  *second = _mm512_unpackhi_epi8(low, high);
}

// 2^(byte - 127) can be added to exponents: it keeps the smallest code (2^-9) and the largest (448 < 2^9) times it
// among bf16's normal values.
inline bool shifts_exponents(uint8_t byte) { return byte >= 127 - 117 && byte <= 127 + 118; }

// What 2^(byte - 127) adds to the bits of a marked value (7 mantissa bits, then the exponent): also takes the mark off.
inline int16_t exponent_step(uint8_t byte) { return static_cast<int16_t>((byte - 127) * (1 << 7) - kFiniteMark); }

// Marked values times the power of two that `steps` adds. Zero stays zero, of its sign, and NaN stays NaN.
MEGAMLA_AVX512_VBMI inline __m512i scaled(__m512i values, __m512i steps) {
  const __mmask32 finite = _mm512_test_epi16_mask(values, _mm512_set1_epi16(kFiniteMark));
  return _mm512_mask_add_epi16(values, finite, values, steps);
}

// The codes of `groups` (1 or 2) groups of 32; absent ones are 0.
MEGAMLA_AVX512_VBMI inline __m512i load_codes(const uint8_t* codes, int64_t groups) {
  return groups >= 2 ? _mm512_loadu_si512(codes) : _mm512_maskz_loadu_epi8(0xffffffffU, codes);
}

}  // namespace megamla::cpu

#endif
