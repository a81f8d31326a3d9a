#include "cpu/widen_avx512.hpp"

#include "cpu/e4m3_avx512.hpp"
#include "cpu/simd/level.hpp"

#if defined(__x86_64__)

namespace megamla::cpu {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kAhead = 2048;  // bytes of codes fetched before they are needed

// Of a power of two; 0 and 255 for what is none.
uint8_t ue8m0_byte(float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  return (bits & 0x7fffffU) == 0 ? static_cast<uint8_t>(bits >> 23U) : uint8_t{0};
}

void widen_slowly(const uint8_t* codes, float scale, format::Bf16* out) {
  for (int64_t i = 0; i < kGroup; ++i) {
    const float value = format::e4m3_to_float(codes[i]) * scale;
    out[i].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16U);
  }
}

}  // namespace

bool has_avx512_vbmi() {
  static const bool has = simd_limit() == SimdLevel::kAvx512 && __builtin_cpu_supports("avx512bf16") != 0 &&
                          __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return has;
}

MEGAMLA_AVX512_VBMI void widen_e4m3_avx512(const uint8_t* codes, const float* scales, int64_t count,
                                           format::Bf16* out) {
  const E4m3Tables tables = load_e4m3_tables();
  for (int64_t k = 0; k < count / kGroup; k += 2, codes += 2 * kGroup, out += 2 * kGroup) {
    const int64_t groups = count / kGroup - k;
    const __m512i loaded = load_codes(codes, groups);
    _mm_prefetch(codes + kAhead, _MM_HINT_T0);
    const uint8_t bytes[2] = {ue8m0_byte(scales[k]), ue8m0_byte(scales[groups >= 2 ? k + 1 : k])};
    if (!shifts_exponents(bytes[0]) || !shifts_exponents(bytes[1])) {
      widen_slowly(codes, scales[k], out);
      if (groups >= 2) widen_slowly(codes + kGroup, scales[k + 1], out + kGroup);
      continue;
    }
    __m512i first;
    __m512i second;
    widen_64(tables, loaded, &first, &second);
    _mm512_storeu_si512(out, scaled(first, _mm512_set1_epi16(exponent_step(bytes[0]))));
    if (groups >= 2) _mm512_storeu_si512(out + kGroup, scaled(second, _mm512_set1_epi16(exponent_step(bytes[1]))));
  }
}

}  // namespace megamla::cpu

#else

namespace megamla::cpu {
bool has_avx512_vbmi() { return false; }
void widen_e4m3_avx512(const uint8_t*, const float*, int64_t, format::Bf16*) {}
}  // namespace megamla::cpu

#endif
