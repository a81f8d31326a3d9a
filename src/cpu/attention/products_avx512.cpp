#include "cpu/attention/products_avx512.hpp"

#include "cpu/simd/level.hpp"
#include "format/kv_record.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#define MEGAMLA_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace megamla::cpu::attention {
namespace {

constexpr int kDims = format::kHeadDim;
constexpr int kStep = 32;  // bf16 values in a 512-bit register

MEGAMLA_AVX512_BF16 inline __m512bh load(const uint16_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

// Adds neighbouring halves: from a and b, a register whose 128-bit quarters are (a0+a2, a1+a3, b0+b2, b1+b3).
MEGAMLA_AVX512_BF16 inline __m512 fold_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

// From (a, b) folded and (c, d) folded: quarters hold one partial vector of a, b, c, d each.
MEGAMLA_AVX512_BF16 inline __m512 fold_quarters(__m512 ab, __m512 cd) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// Lane 4i + j of the result is the sum over the lanes of x[j * 4 + i].
MEGAMLA_AVX512_BF16 inline __m512 sums_of_16(const __m512* x) {
  __m512 q[4];
  for (int j = 0; j < 4; ++j) {
    q[j] = fold_quarters(fold_halves(x[4 * j], x[4 * j + 1]), fold_halves(x[4 * j + 2], x[4 * j + 3]));
  }
  // Each quarter is now a 4x4 matrix of partial sums across q[0..3]: transpose it while adding.
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(q[0], q[1]), _mm512_unpackhi_ps(q[0], q[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(q[2], q[3]), _mm512_unpackhi_ps(q[2], q[3]));
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

// 4 heads x 4 keys: lanes run over dims, so that neither side needs another order.
MEGAMLA_AVX512_BF16 void scores_4x4(const uint16_t* q, const uint16_t* keys, int64_t key_stride, float* scores,
                                    int64_t score_stride) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  for (int d = 0; d < kDims; d += kStep) {
    __m512bh head[4];
#pragma GCC unroll 4
    for (int h = 0; h < 4; ++h) head[h] = load(q + h * kDims + d);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const __m512bh key = load(keys + k * key_stride + d);
#pragma GCC unroll 4
      for (int h = 0; h < 4; ++h) sum[k * 4 + h] = _mm512_dpbf16_ps(sum[k * 4 + h], head[h], key);
    }
  }
  const __m512 total = sums_of_16(sum);
  _mm_storeu_ps(scores, _mm512_castps512_ps128(total));
  _mm_storeu_ps(scores + score_stride, _mm512_extractf32x4_ps(total, 1));
  _mm_storeu_ps(scores + 2 * score_stride, _mm512_extractf32x4_ps(total, 2));
  _mm_storeu_ps(scores + 3 * score_stride, _mm512_extractf32x4_ps(total, 3));
}

// 8 heads x 32 dims over all keys: lanes run over dims; the multiplier is a pair of weights, so two key rows are
// interleaved on the way.
MEGAMLA_AVX512_BF16 void weigh_8x32(const uint16_t* weights, int64_t weight_stride, const uint16_t* keys,
                                    int64_t key_stride, int64_t count, bool accumulate, float* out) {
  __m512 low[8];
  __m512 high[8];
#pragma GCC unroll 8
  for (int h = 0; h < 8; ++h) low[h] = high[h] = _mm512_setzero_ps();
  for (int64_t k = 0; k < count; k += 2) {
    const __m512i even = _mm512_loadu_si512(keys + k * key_stride);
    const __m512i odd = _mm512_loadu_si512(keys + (k + 1) * key_stride);
    const auto pairs_low = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(even, odd));
    const auto pairs_high = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(even, odd));
#pragma GCC unroll 8
    for (int h = 0; h < 8; ++h) {
      int32_t pair;
      __builtin_memcpy(&pair, weights + h * weight_stride + k, sizeof(pair));
      const auto weight = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      low[h] = _mm512_dpbf16_ps(low[h], weight, pairs_low);
      high[h] = _mm512_dpbf16_ps(high[h], weight, pairs_high);
    }
  }
  // The unpack instructions work within 128-bit quarters: dims 0-3, 8-11, 16-19, 24-27 are in `low`, the others in
  // `high`.
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
#pragma GCC unroll 8
  for (int h = 0; h < 8; ++h) {
    float* row = out + h * kDims;
    __m512 a = _mm512_permutex2var_ps(low[h], first, high[h]);
    __m512 b = _mm512_permutex2var_ps(low[h], second, high[h]);
    if (accumulate) {
      a = _mm512_add_ps(a, _mm512_loadu_ps(row));
      b = _mm512_add_ps(b, _mm512_loadu_ps(row + 16));
    }
    _mm512_storeu_ps(row, a);
    _mm512_storeu_ps(row + 16, b);
  }
}

}  // namespace

bool has_avx512_bf16() {
  return simd_limit() == SimdLevel::kAvx512 && __builtin_cpu_supports("avx512bf16") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

void scores_avx512(const uint16_t* q, int64_t heads, const uint16_t* keys, int64_t key_stride, int64_t count,
                   float* scores, int64_t score_stride) {
  constexpr int64_t kBlock = 16;  // heads: their 16 KiB of queries stay in L1 while the keys pass by
  for (int64_t block = 0; block < heads; block += kBlock) {
    for (int64_t k = 0; k < count; k += 4) {
      for (int64_t h = block; h < std::min(block + kBlock, heads); h += 4) {
        scores_4x4(q + h * kDims, keys + k * key_stride, key_stride, scores + h * score_stride + k, score_stride);
      }
    }
  }
}

void weigh_avx512(const uint16_t* weights, int64_t weight_stride, int64_t heads, const uint16_t* keys,
                  int64_t key_stride, int64_t count, bool accumulate, float* out) {
  for (int d = 0; d < kDims; d += kStep) {
    for (int64_t h = 0; h < heads; h += 8) {
      weigh_8x32(weights + h * weight_stride, weight_stride, keys + d, key_stride, count, accumulate,
                 out + h * kDims + d);
    }
  }
}

}  // namespace megamla::cpu::attention

#else

namespace megamla::cpu::attention {

bool has_avx512_bf16() { return false; }
void scores_avx512(const uint16_t*, int64_t, const uint16_t*, int64_t, int64_t, float*, int64_t) {}
void weigh_avx512(const uint16_t*, int64_t, int64_t, const uint16_t*, int64_t, int64_t, bool, float*) {}

}  // namespace megamla::cpu::attention

#endif
