#include "cpu/attention/softmax.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/simd.hpp"
#include "cpu/attention/vector_avx512.hpp"
#include "format/kv_record.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;
constexpr int kLanes = 16;  // sums and maxima run in 16 lanes whatever the machine's width: one order, one result

// The shift follows the largest logit only once that has grown by 2^8: weights up to 256 cost no precision, and the
// accumulated output is hardly ever rescaled.
constexpr float kShiftSlack = 8.0F;

// 2^x for x <= about 100 within 1e-7 relative; below 2^-126 it is 0. NaN stays NaN. Plain products and sums, so that
// every instruction set gives the same bits.
inline float exp2_fast(float x) {
  constexpr float kRounder = 0x1.8p23F;  // adding it leaves the nearest integer in the low bits
  const float bounded = x < -127.0F ? -127.0F : x;
  const float rounded = bounded + kRounder;
  const float f = bounded - (rounded - kRounder);  // in [-0.5, 0.5]
  const uint32_t exponent = std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(kRounder);
  // The Taylor series of 2^f: ln(2)^n / n!; the eighth term is below 6e-9.
  float p = 1.5252733804059841e-5F;
  p = p * f + 1.5403530393381608e-4F;
  p = p * f + 1.3333558146428443e-3F;
  p = p * f + 9.6181291076284772e-3F;
  p = p * f + 5.5504108664821580e-2F;
  p = p * f + 2.4022650695910072e-1F;
  p = p * f + 6.9314718055994531e-1F;
  p = p * f + 1.0F;
  return p * std::bit_cast<float>((exponent + 127U) << 23);
}

inline void store_weight(float weight, format::Bf16* out) {
  const uint32_t u = std::bit_cast<uint32_t>(weight);
  out->bits = static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);  // a NaN shows in the sum
}
inline void store_weight(float weight, float* out) { *out = weight; }

MEGAMLA_SIMD_CLONES float find_largest_logit(const float* scores, int64_t count, float scale) {
  float lane[kLanes];
  for (float& x : lane) x = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float logit = scores[i + l] * scale;
      lane[l] = logit > lane[l] ? logit : lane[l];
    }
  }
  for (; i < count; ++i) lane[0] = scores[i] * scale > lane[0] ? scores[i] * scale : lane[0];
  for (int l = 1; l < kLanes; ++l) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
  return lane[0];
}

template <class Weight>
inline __attribute__((always_inline)) float weigh(const float* scores, int64_t count, int64_t padded, float scale,
                                                  float shift, Weight* weights) {
  float lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float weight = exp2_fast(scores[i + l] * scale - shift);
      lane[l] += weight;
      store_weight(weight, weights + i + l);
    }
  }
  for (int l = 0; i < padded; ++i, ++l) {
    const float weight = i < count ? exp2_fast(scores[i] * scale - shift) : 0.0F;
    lane[l] += weight;
    store_weight(weight, weights + i);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

MEGAMLA_SIMD_CLONES float weigh_bf16(const float* scores, int64_t count, int64_t padded, float scale, float shift,
                                     format::Bf16* weights) {
  return weigh(scores, count, padded, scale, shift, weights);
}
MEGAMLA_SIMD_CLONES float weigh_f32(const float* scores, int64_t count, int64_t padded, float scale, float shift,
                                    float* weights) {
  return weigh(scores, count, padded, scale, shift, weights);
}

float largest_logit(Multiplier multiplier, const float* scores, int64_t count, float scale) {
  return multiplier == Multiplier::kAvx512Bf16 ? largest_logit_avx512(scores, count, scale)
                                               : find_largest_logit(scores, count, scale);
}

float weigh_logits(Multiplier multiplier, const float* scores, int64_t count, int64_t padded, float scale, float shift,
                   void* weights) {
  switch (multiplier) {
    case Multiplier::kAvx512Bf16:
      return weigh_logits_avx512(scores, count, padded, scale, shift, static_cast<format::Bf16*>(weights));
    case Multiplier::kGemmBf16:
      return weigh_bf16(scores, count, padded, scale, shift, static_cast<format::Bf16*>(weights));
    default:
      return weigh_f32(scores, count, padded, scale, shift, static_cast<float*>(weights));
  }
}

MEGAMLA_SIMD_CLONES void scale_and_add(const float* from, float from_factor, float into_factor, float* into) {
  for (int64_t d = 0; d < kDims; ++d) into[d] = into[d] * into_factor + from[d] * from_factor;
}

}  // namespace

void start_partial(const Partial& partial, int64_t heads) {
  for (int64_t h = 0; h < heads; ++h) {
    partial.shift[h] = -FLT_MAX;
    partial.sum[h] = 0;
    partial.largest[h] = -std::numeric_limits<float>::infinity();
  }
}

float weigh_scores(Multiplier multiplier, const float* scores, int64_t count, int64_t padded, float scale,
                   const Partial& partial, int64_t head, void* weights) {
  const float largest = largest_logit(multiplier, scores, count, scale);
  float factor = 1.0F;
  if (largest > partial.shift[head] + kShiftSlack || partial.shift[head] == -FLT_MAX) {
    const float before = partial.shift[head];
    partial.shift[head] = std::max(largest, -FLT_MAX);
    factor = before == -FLT_MAX ? 0.0F : std::exp2(before - partial.shift[head]);
    partial.sum[head] *= factor;
  }
  partial.largest[head] = std::max(partial.largest[head], largest);
  partial.sum[head] += weigh_logits(multiplier, scores, count, padded, scale, partial.shift[head], weights);
  return factor;
}

MEGAMLA_SIMD_CLONES void scale_row(float factor, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void merge_partial(const Partial& from, int64_t heads, const Partial& into) {
  for (int64_t h = 0; h < heads; ++h) {
    const float shift = std::max(into.shift[h], from.shift[h]);
    const float into_factor = std::exp2(into.shift[h] - shift);
    const float from_factor = std::exp2(from.shift[h] - shift);
    scale_and_add(from.out + h * kDims, from_factor, into_factor, into.out + h * kDims);
    into.sum[h] = into.sum[h] * into_factor + from.sum[h] * from_factor;
    into.shift[h] = shift;
    into.largest[h] = std::max(into.largest[h], from.largest[h]);
  }
}

void copy_partial(const Partial& from, int64_t heads, const Partial& into) {
  const size_t bytes = static_cast<size_t>(heads) * sizeof(float);
  std::memcpy(into.out, from.out, bytes * kDims);
  std::memcpy(into.shift, from.shift, bytes);
  std::memcpy(into.sum, from.sum, bytes);
  std::memcpy(into.largest, from.largest, bytes);
}

}  // namespace megamla::cpu::attention
