// Records from values, 16 dims a lane, part p being dims 16p .. 16p+15 of a row, or 4 dims a lane. A scale group that
// lies in neighbouring lanes is one that all lanes of the warp must reach together. Every byte equals that of
// format::encode_row.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/f16x2.cuh"
#include "cuda/record_decode.cuh"
#include "format/kv_record.hpp"

namespace megamla::cuda {

constexpr unsigned kFullWarp = 0xffffffffU;
constexpr int kPartDims = 16;
constexpr int kNopeParts = format::kNopeDim / kPartDims;
constexpr int kRopeParts = format::kRopeDim / kPartDims;

struct BitsPart {  // bf16 values
  uint32_t pairs[kPartDims / 2];
};
template <int kDims>
struct Floats {
  float x[kDims];
};
using FloatPart = Floats<kPartDims>;

__device__ inline FloatPart widen(const BitsPart& part) {
  FloatPart wide;
#pragma unroll
  for (int i = 0; i < kPartDims / 2; ++i) {
    wide.x[2 * i] = bf16x2_low(part.pairs[i]);
    wide.x[2 * i + 1] = bf16x2_high(part.pairs[i]);
  }
  return wide;
}

// max|x| of a part; NaN if one is NaN.
__device__ inline float amax_nan(const BitsPart& part) {
  uint32_t largest = part.pairs[0] & 0x7fff7fffU;
#pragma unroll
  for (int i = 1; i < kPartDims / 2; ++i) largest = bf16x2_max_nan(largest, part.pairs[i] & 0x7fff7fffU);
  return max_nan(bf16x2_low(largest), bf16x2_high(largest));
}
template <int kDims>
__device__ inline float amax_nan(const Floats<kDims>& part) {
  float largest = fabsf(part.x[0]);
#pragma unroll
  for (int i = 1; i < kDims; ++i) largest = max_nan(largest, fabsf(part.x[i]));
  return largest;
}
// NaN ignored; 0 if all are.
__device__ inline float amax(const BitsPart& part) {
  uint32_t largest = 0;
#pragma unroll
  for (uint32_t pair : part.pairs) largest = bf16x2_max(largest, pair & 0x7fff7fffU);
  return fmaxf(bf16x2_low(largest), bf16x2_high(largest));
}
template <int kDims>
__device__ inline float amax(const Floats<kDims>& part) {
  float largest = 0;
#pragma unroll
  for (float x : part.x) largest = fmaxf(largest, fabsf(x));
  return largest;
}
template <int kLanes>
__device__ inline float group_max(float largest) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  return largest;
}

// Four finite values as e4m3, nearest even, saturated: format::float_to_e4m3.
__device__ inline uint32_t to_e4m3x4(float a, float b, float c, float d) {
  uint16_t low;
  uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | (static_cast<uint32_t>(high) << 16);
}

template <int kDims>
struct E4m3Codes {
  uint32_t words[kDims / 4];
  uint8_t scale;
};

// The codes of a part whose group holds a NaN or an infinity.
template <int kDims>
static __device__ __noinline__ E4m3Codes<kDims> spoiled_codes(Floats<kDims> part, format::detail::Ue8m0Group group) {
  E4m3Codes<kDims> encoded{{}, group.scale};
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    encoded.words[i / 4] |= static_cast<uint32_t>(format::detail::encode_ue8m0_value(group, part.x[i]))
                            << (8 * (i % 4));
  }
  return encoded;
}

__device__ inline FloatPart floats_of(const BitsPart& part) { return widen(part); }
template <int kDims>
__device__ inline const Floats<kDims>& floats_of(const Floats<kDims>& part) {
  return part;
}

// kLanes: lanes that share a scale group.
template <int kLanes, class Part>
__device__ inline auto encode_e4m3(const Part& part) {
  float largest = amax_nan(part);
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    largest = max_nan(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  const auto wide = floats_of(part);
  constexpr int kDims = sizeof(wide.x) / sizeof(float);
  if (__any_sync(kFullWarp, !format::detail::is_finite(largest))) {
    return spoiled_codes(wide, format::detail::ue8m0_group(group_max<kLanes>(amax(part))));
  }
  const auto group = format::detail::ue8m0_group(largest);
  E4m3Codes<kDims> encoded{{}, group.scale};
#pragma unroll
  for (int i = 0; i < kDims / 4; ++i) {
    encoded.words[i] = to_e4m3x4(wide.x[4 * i] * group.factor, wide.x[4 * i + 1] * group.factor,
                                 wide.x[4 * i + 2] * group.factor, wide.x[4 * i + 3] * group.factor);
  }
  return encoded;
}

template <int kDims>
struct E2m1Codes {
  uint32_t words[(kDims + 7) / 8];
  uint8_t scale;
};

// e2m1 of an fp32 value, |x| / d without the division. A code is the number of midpoints t that round(|x| / d) passes:
// those at an odd code's lower side strictly, the others from equality on. t * d is exact, and |x| is an fp32: where it
// differs from t * d at all, |x| / d differs from t by more than half a unit in t's last place, so that comparing |x|
// with t * d gives what comparing the rounded quotient with t gives.
__device__ constexpr float e2m1_midpoint(int t) {
  constexpr float kMidpoints[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  return kMidpoints[t];
}

// The scale of a group: format::detail::nvfp4_scale, of which no value is NaN or saturates.
__device__ inline uint8_t nvfp4_scale_code(float largest) {
  constexpr float kSixth = 1.0F / 6.0F;
  const float wanted = fminf(fmaxf(largest * kSixth, 0x1p-9F), format::kE4m3Max);
  return static_cast<uint8_t>(to_e4m3x4(wanted, 0, 0, 0));
}

// fp16 that are not negative, rounded to the nearest even of those with one bit of mantissa, and to multiples of 2^-15
// below 2^-14; at most 6 * 2^-14, NaN too. 512 times the power of two below a value, and 2^-5 at least, has that many
// halves of the power as a unit in the last place, so that adding it rounds.
__device__ inline uint32_t round_e2m1(uint32_t q) {
  constexpr uint32_t kSix = 0x0e000e00U;
  constexpr uint32_t kOne = 0x04000400U;  // 2^-14
  constexpr uint32_t kExponent = 0x7c007c00U;
  constexpr uint32_t k512 = 0x60006000U;
  constexpr uint32_t kMinus512 = 0xe000e000U;
  const uint32_t x = f16x2_min(q, kSix);
  const uint32_t power = f16x2_max(x, kOne) & kExponent;
  return f16x2_fma(power, kMinus512, f16x2_fma(power, k512, x));
}

// format::e4m3_to_float of a code that is no NaN.
__device__ inline float e4m3_value(uint8_t code) {
  uint32_t pair;
  float value;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(code)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(pair)));
  return value;
}

// 2^-14 / d of the scale's value d, but for two units in the last place.
__device__ inline float e2m1_factor(uint8_t scale) {
  const float d = e4m3_value(scale);
  float factor;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(factor) : "f"(d));
  return factor * 0x1p-14F;
}

// bf16 values, two at a time: |x| / d, times 2^-14, as fp16, which round_e2m1 rounds to a code's value: exponent and
// mantissa as e2m1 has them, in bits 9 to 11. That fp16 lies on the same side of every midpoint t as the exact
// quotient: where |x| is not t * d, which has at most 7 significant bits, the two differ by a unit of bf16 at least, so
// |x| / d and t by t * 2^-8, and that is a unit of this fp16 or more (2^-10 below 2, 2^-9 below 4, 2^-8 below 8). Where
// |x| is t * d the error of the factor is rounded away.
template <int kLanes>
__device__ inline E2m1Codes<kPartDims> encode_e2m1(const BitsPart& part) {
  static_assert(kLanes == 1);  // a part is a group
  constexpr uint32_t kSign = 0x80008000U;
  const uint8_t scale = nvfp4_scale_code(amax(part));
  const float factor = e2m1_factor(scale);
  uint32_t nibbles[kPartDims / 2];  // bits 12 to 15 and 28 to 31: the codes of a pair
#pragma unroll
  for (int i = 0; i < kPartDims / 2; ++i) {
    const uint32_t pair = part.pairs[i];
    const uint32_t q = f16x2_round(fabsf(bf16x2_low(pair)) * factor, fabsf(bf16x2_high(pair)) * factor);
    nibbles[i] = round_e2m1(q) * 8U | (pair & kSign);
  }
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    // The upper bytes of four halves, each with a code in its upper half; then two of them in every second byte.
    const uint32_t low = __byte_perm(nibbles[4 * w], nibbles[4 * w + 1], 0x7531) * 0x11U;
    const uint32_t high = __byte_perm(nibbles[4 * w + 2], nibbles[4 * w + 3], 0x7531) * 0x11U;
    words[w] = __byte_perm(low, high, 0x7531);
  }
  return {{words[0], words[1]}, scale};
}

// fp32 values, of a group in kLanes lanes: a search over the midpoints.
template <int kLanes, int kDims>
__device__ inline E2m1Codes<kDims> encode_e2m1(const Floats<kDims>& part) {
  const uint8_t scale = nvfp4_scale_code(group_max<kLanes>(amax(part)));
  const float divisor = e4m3_value(scale);
  float midpoint[7];
#pragma unroll
  for (int t = 0; t < 7; ++t) midpoint[t] = e2m1_midpoint(t) * divisor;
  E2m1Codes<kDims> encoded{{}, scale};
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const float x = fabsf(part.x[i]);  // NaN passes every midpoint
    const bool four = !(x < midpoint[3]);
    const bool two = !(x < (four ? midpoint[5] : midpoint[1]));
    const float last = four ? (two ? midpoint[6] : midpoint[4]) : (two ? midpoint[2] : midpoint[0]);
    const uint32_t code = (four ? 4U : 0U) + (two ? 2U : 0U) + (x <= last ? 0U : 1U);
    encoded.words[i / 8] |= (code | ((__float_as_uint(part.x[i]) >> 28) & 8U)) << (4 * (i % 8));
  }
  return encoded;
}

}  // namespace megamla::cuda
