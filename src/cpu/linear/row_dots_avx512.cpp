#include "cpu/linear/row_dots_avx512.hpp"

#include <algorithm>

#include "cpu/e4m3_avx512.hpp"

#if defined(__x86_64__)

namespace megamla::cpu::linear {
namespace {

constexpr int64_t kGroup = 32;  // columns of one scale, and bf16 values of one register
constexpr int64_t kBytesAhead = 16384;

// The distance to the codes that are fetched while some are worked on: whole tiles of four rows, since rows are too
// short for the hardware to look ahead.
int64_t codes_ahead(int64_t in) { return std::max<int64_t>(4, kBytesAhead / in / 4 * 4) * in; }

MEGAMLA_AVX512_VBMI inline __m512bh load(const format::Bf16* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

// sum += scale * (w . x) over 32 columns. The scale multiplies the fp32 sum: exact, and NaN stays NaN.
MEGAMLA_AVX512_VBMI inline __m512 add_group(__m512 sum, __m512i w, const format::Bf16* x, __m512 scale) {
  const __m512 dot = _mm512_dpbf16_ps(_mm512_setzero_ps(), reinterpret_cast<__m512bh>(w), load(x));
  return _mm512_fmadd_ps(dot, scale, sum);
}

// kRows x kTokens sums stay in registers over all columns.
template <int kRows, int kTokens>
MEGAMLA_AVX512_VBMI void tile(const RowDots& d, int64_t row, int64_t token) {
  const E4m3Tables tables = load_e4m3_tables();
  const uint8_t* codes = d.codes + row * d.in;
  const float* scales = d.scales + row * d.scale_stride;
  const format::Bf16* x = d.x + token * d.ldx;
  __m512 sum[kRows * kTokens];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kTokens; ++i) sum[i] = _mm512_setzero_ps();
  const int64_t groups = d.in / kGroup;
  const int64_t ahead = codes_ahead(d.in);
  for (int64_t k = 0; k < groups; k += 2) {
    const bool both = k + 1 < groups;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      _mm_prefetch(codes + r * d.in + k * kGroup + ahead, _MM_HINT_T0);
      __m512i first, second;
      widen_64(tables, load_codes(codes + r * d.in + k * kGroup, groups - k), &first, &second);
      const __m512 scale = _mm512_set1_ps(scales[r * d.scale_stride + k]);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sum[r * kTokens + t] = add_group(sum[r * kTokens + t], first, x + t * d.ldx + k * kGroup, scale);
      }
      if (!both) continue;
      const __m512 next_scale = _mm512_set1_ps(scales[r * d.scale_stride + k + 1]);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sum[r * kTokens + t] = add_group(sum[r * kTokens + t], second, x + t * d.ldx + (k + 1) * kGroup, next_scale);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kTokens; ++i) {
    d.y[(token + i % kTokens) * d.ldy + row + i / kTokens] = _mm512_reduce_add_ps(sum[i]);
  }
}

template <int kTokens>
void tile_rows(const RowDots& d, int64_t token) {
  constexpr int kRows = kTokens <= 4 ? 4 : 2;  // at most 16 sums: the tables and operands take the other registers
  int64_t row = 0;
  for (; row + kRows <= d.rows; row += kRows) tile<kRows, kTokens>(d, row, token);
  for (; row < d.rows; ++row) tile<1, kTokens>(d, row, token);
}

}  // namespace

void row_dots_avx512(const RowDots& d) {
  int64_t token = 0;
  for (; token + 8 <= d.tokens; token += 8) tile_rows<8>(d, token);
  switch (d.tokens - token) {
    case 1:
      return tile_rows<1>(d, token);
    case 2:
      return tile_rows<2>(d, token);
    case 3:
      return tile_rows<3>(d, token);
    case 4:
      return tile_rows<4>(d, token);
    case 5:
      return tile_rows<5>(d, token);
    case 6:
      return tile_rows<6>(d, token);
    case 7:
      return tile_rows<7>(d, token);
    default:
      return;
  }
}

}  // namespace megamla::cpu::linear

#else

namespace megamla::cpu::linear {
void row_dots_avx512(const RowDots&) {}
}  // namespace megamla::cpu::linear

#endif
