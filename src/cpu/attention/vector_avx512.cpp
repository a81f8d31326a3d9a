#include "cpu/attention/vector_avx512.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>

#define MEGAMLA_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kLanes = 16;

// Lanes i .. i+15 that lie below count.
MEGAMLA_AVX512_BF16 inline __mmask16 lanes_below(int64_t i, int64_t count) {
  const int64_t left = count - i;
  return left >= kLanes ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1U << left) - 1U);
}

// 2^x within 1e-7 relative for x <= 128, NaN for NaN. The Taylor series of 2^f on [-0.5, 0.5], as in softmax.cpp.
MEGAMLA_AVX512_BF16 inline __m512 exp2_lanes(__m512 x) {
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-160.0F), x);  // the second operand wins where one is NaN
  const __m512 whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(bounded, whole);
  __m512 p = _mm512_set1_ps(1.5252733804059841e-5F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.5403530393381608e-4F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558146428443e-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291076284772e-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504108664821580e-2F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022650695910072e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718055994531e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, whole);
}

}  // namespace

MEGAMLA_AVX512_BF16 float largest_logit_avx512(const float* scores, int64_t count, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 largest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 lanes = lanes_below(i, count);
    const __m512 logit = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, scores + i), factor);
    largest = _mm512_mask_max_ps(largest, lanes, logit, largest);  // the second operand wins where one is NaN
  }
  return _mm512_reduce_max_ps(largest);
}

MEGAMLA_AVX512_BF16 float weigh_logits_avx512(const float* scores, int64_t count, int64_t padded, float scale,
                                              float shift, format::Bf16* weights) {
  const __m512 factor = _mm512_set1_ps(scale);
  const __m512 offset = _mm512_set1_ps(shift);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < padded; i += kLanes) {
    const __mmask16 lanes = lanes_below(i, count);
    const __m512 score = _mm512_maskz_loadu_ps(lanes, scores + i);
    const __m512 weight = _mm512_maskz_mov_ps(lanes, exp2_lanes(_mm512_fmsub_ps(score, factor, offset)));
    sum = _mm512_add_ps(sum, weight);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weight)));
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace megamla::cpu::attention

#else

namespace megamla::cpu::attention {

float largest_logit_avx512(const float*, int64_t, float) { return 0; }
float weigh_logits_avx512(const float*, int64_t, int64_t, float, float, format::Bf16*) { return 0; }

}  // namespace megamla::cpu::attention

#endif
