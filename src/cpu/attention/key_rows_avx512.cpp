#include "cpu/attention/key_rows_avx512.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>

#define MEGAMLA_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace megamla::cpu::attention {
namespace {

constexpr auto kE2m1Values = [] {
  std::array<float, 16> values{};
  for (uint8_t code = 0; code < 16; ++code) values[code] = format::e2m1_to_float(code);
  return values;
}();

// e4m3 -> fp32, 16 codes: cpu/widen.cpp's arithmetic.
MEGAMLA_AVX512 inline __m512 widen_e4m3(__m128i codes) {
  const __m512i code = _mm512_cvtepu8_epi32(codes);
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_slli_epi32(_mm512_sub_epi32(code, magnitude), 24);
  const __mmask16 subnormal = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
  const __m512i shifted = _mm512_slli_epi32(magnitude, 20);
  const __m512i normal = _mm512_add_epi32(shifted, _mm512_set1_epi32(120 << 23));
  const __m512 raised = _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(121 << 23)));
  __m512 value = _mm512_mask_sub_ps(_mm512_castsi512_ps(normal), subnormal, raised, _mm512_set1_ps(0x1p-6F));
  value = _mm512_mask_mov_ps(value, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
  return _mm512_or_ps(value, _mm512_castsi512_ps(sign));
}

// The upper halves of 32 fp32 values that are exact in bf16.
MEGAMLA_AVX512 inline void store_bf16(__m512 first, __m512 second, format::Bf16* out) {
  alignas(64) static constexpr std::array<uint16_t, 32> kUpperHalves = [] {
    std::array<uint16_t, 32> index{};
    for (uint16_t i = 0; i < 32; ++i) index[i] = static_cast<uint16_t>(2 * i + 1);
    return index;
  }();
  const __m512i index = _mm512_load_si512(kUpperHalves.data());
  _mm512_storeu_si512(out, _mm512_permutex2var_epi16(_mm512_castps_si512(first), index, _mm512_castps_si512(second)));
}

MEGAMLA_AVX512 inline void decode_32(const uint8_t* data, __m512 scale, format::Bf16* out) {
  const __m512 first = widen_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
  const __m512 second = widen_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16)));
  store_bf16(_mm512_mul_ps(first, scale), _mm512_mul_ps(second, scale), out);
}

}  // namespace

MEGAMLA_AVX512 void decode_row_avx512(format::Fp8_528, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  constexpr int kGroup = format::Fp8_528::kScaleGroup;
  for (int g = 0; g < format::Fp8_528::kScaleBytes; ++g) {
    decode_32(data + g * kGroup, _mm512_set1_ps(format::ue8m0_to_float(scale[g])), out + g * kGroup);
  }
}

MEGAMLA_AVX512 void decode_row_avx512(format::Fp8_584, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  constexpr int kGroup = format::Fp8_584::kScaleGroup;
  for (int g = 0; g < format::Fp8_584::kScaleGroups; ++g) {
    const __m512 factor = _mm512_set1_ps(format::ue8m0_to_float(scale[g]));
    decode_32(data + g * kGroup, factor, out + g * kGroup);
    decode_32(data + g * kGroup + kGroup / 2, factor, out + g * kGroup + kGroup / 2);
  }
  __builtin_memcpy(static_cast<void*>(out + format::kNopeDim), data + format::kNopeDim,
                   format::kRopeDim * sizeof(*out));
}

// Two scale groups (32 dims, 16 bytes of codes) at a time. A dword lane gets the dword that holds its nibble, shifted
// so that the nibble is lowest; the 16-entry table look-up ignores the bits above.
MEGAMLA_AVX512 void decode_row_avx512(format::Nvfp4_288, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  const __m512 values = _mm512_loadu_ps(kE2m1Values.data());
  const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  alignas(64) float scales[format::Nvfp4_288::kScaleBytes];
  for (int i = 0; i < format::Nvfp4_288::kScaleBytes; i += 16) {
    _mm512_store_ps(scales + i, widen_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scale + i))));
  }
  for (int g = 0; g < format::Nvfp4_288::kScaleBytes; g += 2) {
    const __m512i codes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + g * 8)));
    const __m512i low =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), codes);
    const __m512i high =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3), codes);
    const __m512 first = _mm512_permutexvar_ps(_mm512_srlv_epi32(low, shifts), values);
    const __m512 second = _mm512_permutexvar_ps(_mm512_srlv_epi32(high, shifts), values);
    store_bf16(_mm512_mul_ps(first, _mm512_set1_ps(scales[g])), _mm512_mul_ps(second, _mm512_set1_ps(scales[g + 1])),
               out + g * format::Nvfp4_288::kScaleGroup);
  }
}

}  // namespace megamla::cpu::attention

#else

namespace megamla::cpu::attention {

void decode_row_avx512(format::Fp8_528, const uint8_t*, const uint8_t*, format::Bf16*) {}
void decode_row_avx512(format::Fp8_584, const uint8_t*, const uint8_t*, format::Bf16*) {}
void decode_row_avx512(format::Nvfp4_288, const uint8_t*, const uint8_t*, format::Bf16*) {}

}  // namespace megamla::cpu::attention

#endif
