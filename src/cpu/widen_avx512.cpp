#include "cpu/widen_avx512.hpp"

#include "cpu/e4m3_avx512.hpp"

#if defined(__x86_64__)

namespace megamla::cpu {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kAhead = 2048;  // bytes of codes fetched before they are needed

// What a scale adds to the bits of a bf16 value (7 mantissa bits, then the exponent) to multiply it.
int exponent_step(float scale) { return (static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23U) - 127) * (1 << 7); }

// 2^e that keeps the smallest code (2^-9) and the largest (448 < 2^9) times 2^e among bf16's normal values.
bool shifts_exponents(float scale) { return scale >= 0x1p-117F && scale <= 0x1p118F; }

// Zero stays zero, of its sign.
MEGAMLA_AVX512_VBMI inline void store_scaled(__m512i values, float scale, format::Bf16* out) {
  const __mmask32 nonzero = _mm512_test_epi16_mask(values, _mm512_set1_epi16(0x7fff));
  const __m512i step = _mm512_set1_epi16(static_cast<int16_t>(exponent_step(scale)));
  _mm512_storeu_si512(out, _mm512_mask_add_epi16(values, nonzero, values, step));
}

MEGAMLA_AVX512_VBMI inline bool any_nan(__m512i codes) {
  const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
  return _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7f)) != 0;
}

void widen_slowly(const uint8_t* codes, float scale, format::Bf16* out) {
  for (int64_t i = 0; i < kGroup; ++i) {
    const float value = format::e4m3_to_float(codes[i]) * scale;
    out[i].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16U);
  }
}

}  // namespace

bool has_avx512_vbmi() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0;
  return has;
}

MEGAMLA_AVX512_VBMI void widen_e4m3_avx512(const uint8_t* codes, const float* scales, int64_t count,
                                           format::Bf16* out) {
  const E4m3Tables tables = load_e4m3_tables();
  for (int64_t k = 0; k < count / kGroup; k += 2, codes += 2 * kGroup, out += 2 * kGroup) {
    const int64_t groups = count / kGroup - k;
    const __m512i loaded = load_codes(codes, groups);
    _mm_prefetch(codes + kAhead, _MM_HINT_T0);
    const bool plain = shifts_exponents(scales[k]) && (groups < 2 || shifts_exponents(scales[k + 1]));
    if (!plain || any_nan(loaded)) {
      widen_slowly(codes, scales[k], out);
      if (groups >= 2) widen_slowly(codes + kGroup, scales[k + 1], out + kGroup);
      continue;
    }
    __m512i first;
    __m512i second;
    widen_64(tables, loaded, &first, &second);
    store_scaled(first, scales[k], out);
    if (groups >= 2) store_scaled(second, scales[k + 1], out + kGroup);
  }
}

}  // namespace megamla::cpu

#else

namespace megamla::cpu {
bool has_avx512_vbmi() { return false; }
void widen_e4m3_avx512(const uint8_t*, const float*, int64_t, format::Bf16*) {}
}  // namespace megamla::cpu

#endif
