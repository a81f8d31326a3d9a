#include "cpu/record_codec.hpp"

#include <bit>
#include <cstring>

#include "cpu/attention/key_rows_avx512.hpp"
#include "cpu/attention/products_avx512.hpp"
#include "cpu/simd.hpp"
#include "cpu/widen.hpp"
#include "plan/insert_rows.hpp"

namespace megamla::cpu {
namespace {

constexpr int kDims = format::kHeadDim;
constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr uint32_t kInfinity = 0x7f800000U;

inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// Magnitudes compare as integers. False if a value is NaN or infinite.
template <int kGroup, int kGroups>
inline __attribute__((always_inline)) bool group_maxima(const float* x, float* maxima) {
  uint32_t largest = 0;
  for (int g = 0; g < kGroups; ++g) {
    uint32_t most = 0;
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t magnitude = bits_of(x[g * kGroup + i]) & kMagnitude;
      most = magnitude > most ? magnitude : most;
    }
    maxima[g] = std::bit_cast<float>(most);
    largest = most > largest ? most : largest;
  }
  return largest < kInfinity;
}

// Round to nearest even of a value that the format holds without saturating. kMantissa bits, kBias: e4m3 3 and 7, e2m1
// 1 and 1. A result below the smallest normal is rounded by an addition that puts its unit at the last place of an
// fp32.
template <int kMantissa, int kBias>
inline uint32_t rounded_code(float x) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  constexpr uint32_t kAligner = static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23;
  const uint32_t magnitude = bits_of(x) & kMagnitude;
  const uint32_t normal = ((magnitude + ((1U << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1U)) >> kShift) - kRebias;
  const uint32_t subnormal = bits_of(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAligner)) - kAligner;
  return magnitude < kSmallestNormal ? subnormal : normal;
}
inline uint8_t e4m3_code(float x) { return static_cast<uint8_t>(rounded_code<3, 7>(x) | ((bits_of(x) >> 24) & 0x80U)); }
inline uint8_t e2m1_code(float x) {
  const uint32_t code = rounded_code<1, 1>(x);
  return static_cast<uint8_t>((code > 7U ? 7U : code) | ((bits_of(x) >> 28) & 8U));
}

// ue8m0 groups of finite values. |x * factor| <= 448.
template <int kGroup, int kGroups>
inline __attribute__((always_inline)) bool encode_e4m3(const float* x, uint8_t* data, uint8_t* scale) {
  float maxima[kGroups];
  if (!group_maxima<kGroup, kGroups>(x, maxima)) return false;
  for (int g = 0; g < kGroups; ++g) {
    const int e = format::group_exponent(maxima[g] > format::kAmaxFloor ? maxima[g] : format::kAmaxFloor);
    const float factor = format::inverse_power_of_two(e);
    scale[g] = static_cast<uint8_t>(e + 127);
    for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) data[i] = e4m3_code(x[i] * factor);
  }
  return true;
}

MEGAMLA_SIMD_CLONES bool encode_fp8_528(const float* __restrict x, uint8_t* __restrict data,
                                        uint8_t* __restrict scale) {
  return encode_e4m3<format::Fp8_528::kScaleGroup, format::Fp8_528::kScaleBytes>(x, data, scale);
}
MEGAMLA_SIMD_CLONES bool encode_fp8_584(const float* __restrict x, uint8_t* __restrict data,
                                        uint8_t* __restrict scale) {
  return encode_e4m3<format::Fp8_584::kScaleGroup, format::Fp8_584::kScaleGroups>(x, data, scale);
}

// One scale per dim: loops over a whole row become vector code, loops over groups of 16 are unrolled instead.
inline __attribute__((always_inline)) void spread_scales(const float* scales, float* per_dim) {
  constexpr int kGroup = format::Nvfp4_288::kScaleGroup;
  for (int i = 0; i < kDims; ++i) per_dim[i] = scales[i / kGroup];
}

MEGAMLA_SIMD_CLONES bool encode_nvfp4(const float* __restrict x, uint8_t* __restrict data, uint8_t* __restrict scale) {
  constexpr int kGroup = format::Nvfp4_288::kScaleGroup;
  constexpr int kGroups = format::Nvfp4_288::kScaleBytes;
  float scales[kGroups];
  if (!group_maxima<kGroup, kGroups>(x, scales)) return false;
  for (int g = 0; g < kGroups; ++g) {
    const float wanted = scales[g] * (1.0F / 6.0F);
    scale[g] = e4m3_code(wanted < 0x1p-9F ? 0x1p-9F : wanted > format::kE4m3Max ? format::kE4m3Max : wanted);
    scales[g] = format::e4m3_to_float(scale[g]);
  }
  float divisors[kDims];
  spread_scales(scales, divisors);
  uint8_t codes[kDims];
  for (int i = 0; i < kDims; ++i) codes[i] = e2m1_code(x[i] / divisors[i]);
  for (int i = 0; i < kDims / 2; ++i) data[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  return true;
}

// A normal code's exponent and mantissa move to fp32's place; a subnormal one (0 or 1) is read one exponent higher, as
// 1 + code / 2, and loses the 1 again.
inline float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7U;
  const uint32_t subnormal = magnitude < 2 ? 1U : 0U;
  const float raised = std::bit_cast<float>((magnitude << 22) + ((126U + subnormal) << 23));
  const float value = raised - (subnormal != 0 ? 1.0F : 0.0F);
  return std::bit_cast<float>(bits_of(value) | ((code & 8U) << 28));
}

// A code times a scale is exact in bf16: 2 significant bits times 4.
MEGAMLA_SIMD_CLONES void decode_nvfp4(const uint8_t* __restrict data, const float* __restrict scales,
                                      format::Bf16* __restrict out) {
  float factors[kDims];
  spread_scales(scales, factors);
  uint8_t codes[kDims];
  for (int i = 0; i < kDims / 2; ++i) {
    codes[2 * i] = data[i] & 15U;
    codes[2 * i + 1] = data[i] >> 4U;
  }
  for (int i = 0; i < kDims; ++i) {
    out[i].bits = static_cast<uint16_t>(bits_of(e2m1_value(codes[i]) * factors[i]) >> 16);
  }
}

// True if every code's value is a normal bf16 number or 0, infinite or NaN: nothing is rounded then. The smallest code
// is 2^-9 and the smallest normal number 2^-126.
inline bool has_exact_scales(const uint8_t* scale, int groups) {
  constexpr uint8_t kSmallest = 127 - 126 + 9;
  for (int g = 0; g < groups; ++g) {
    if (scale[g] < kSmallest) return false;
  }
  return true;
}

// With a scale per 32 dims. Rounded, since extreme scales leave bf16's range.
void decode_e4m3(const uint8_t* data, const float* scales, int64_t count, format::Bf16* out) {
  alignas(64) float x[kDims];
  widen_e4m3(data, scales, count, x);
  narrow_to_bf16(x, count, out);
}

}  // namespace

void encode_record(format::Fp8_528 record, const float* x, uint8_t* data, uint8_t* scale) {
  if (!encode_fp8_528(x, data, scale)) format::encode_row(record, x, data, scale);
}

void encode_record(format::Fp8_584 record, const float* x, uint8_t* data, uint8_t* scale) {
  if (!encode_fp8_584(x, data, scale)) return format::encode_row(record, x, data, scale);
  scale[format::Fp8_584::kScaleGroups] = 0;
  format::Bf16 rope[format::kRopeDim];
  narrow_to_bf16(x + format::kNopeDim, format::kRopeDim, rope);
  std::memcpy(data + format::kNopeDim, rope, sizeof(rope));
}

void encode_record(format::Nvfp4_288 record, const float* x, uint8_t* data, uint8_t* scale) {
  if (!encode_nvfp4(x, data, scale)) format::encode_row(record, x, data, scale);
}

void decode_record(format::Fp8_528 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  if (has_exact_scales(scale, format::Fp8_528::kScaleBytes) && attention::has_avx512_bf16()) {
    return attention::decode_row_avx512(record, data, scale, out);
  }
  float scales[format::Fp8_528::kScaleBytes];
  for (int g = 0; g < format::Fp8_528::kScaleBytes; ++g) scales[g] = format::ue8m0_to_float(scale[g]);
  decode_e4m3(data, scales, kDims, out);
}

void decode_record(format::Fp8_584 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  if (has_exact_scales(scale, format::Fp8_584::kScaleGroups) && attention::has_avx512_bf16()) {
    return attention::decode_row_avx512(record, data, scale, out);
  }
  float scales[2 * format::Fp8_584::kScaleGroups];
  for (int g = 0; g < format::Fp8_584::kScaleGroups; ++g) {
    scales[2 * g] = scales[2 * g + 1] = format::ue8m0_to_float(scale[g]);
  }
  decode_e4m3(data, scales, format::kNopeDim, out);
  std::memcpy(out + format::kNopeDim, data + format::kNopeDim, format::kRopeDim * sizeof(*out));
}

void decode_record(format::Nvfp4_288 record, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  if (attention::has_avx512_bf16()) return attention::decode_row_avx512(record, data, scale, out);
  float scales[format::Nvfp4_288::kScaleBytes];
  for (int g = 0; g < format::Nvfp4_288::kScaleBytes; ++g) scales[g] = format::e4m3_to_float(scale[g]);
  decode_nvfp4(data, scales, out);
}

MEGAMLA_SIMD_CLONES void rotated_latent(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                                        float* x) {
  plan::rotated_latent(writer, latent, cos_sin, x);
}

}  // namespace megamla::cpu
