#include "cpu/linear/row_dots_avx512.hpp"

#include <algorithm>
#include <iterator>

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

// The sums of kRows x kTokens stay in registers over all columns.
template <int kRows, int kTokens>
MEGAMLA_AVX512_VBMI void tile(const RowDots& d, int64_t row, int64_t token) {
  const E4m3Tables tables = load_e4m3_tables();
  const uint8_t* codes = d.codes + row * d.in;
  const uint32_t* steps = d.steps + row * d.step_stride;
  const format::Bf16* x = d.x + token * d.ldx;
  __m512 sum[kRows * kTokens];
#pragma GCC unroll 32
  for (int i = 0; i < kRows * kTokens; ++i) sum[i] = _mm512_setzero_ps();
  const int64_t groups = d.in / kGroup;
  const int64_t ahead = codes_ahead(d.in);
  for (int64_t k = 0; k < groups; k += 2) {
    const bool both = k + 1 < groups;
    __m512bh w[2 * kRows];  // the rows' first groups, then their second ones
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      _mm_prefetch(codes + r * d.in + k * kGroup + ahead, _MM_HINT_T0);
      __m512i first, second;
      widen_64(tables, load_codes(codes + r * d.in + k * kGroup, groups - k), &first, &second);
      const uint32_t* step = steps + r * d.step_stride + k;
      w[r] = reinterpret_cast<__m512bh>(scaled(first, _mm512_set1_epi32(static_cast<int>(step[0]))));
      w[kRows + r] =
          reinterpret_cast<__m512bh>(scaled(second, _mm512_set1_epi32(static_cast<int>(step[both ? 1 : 0]))));
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const __m512bh value = load(x + t * d.ldx + k * kGroup);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r * kTokens + t] = _mm512_dpbf16_ps(sum[r * kTokens + t], w[r], value);
    }
    if (!both) continue;
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const __m512bh value = load(x + t * d.ldx + (k + 1) * kGroup);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        sum[r * kTokens + t] = _mm512_dpbf16_ps(sum[r * kTokens + t], w[kRows + r], value);
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < kRows * kTokens; ++i) {
    d.y[(token + i % kTokens) * d.ldy + row + i / kTokens] = _mm512_reduce_add_ps(sum[i]);
  }
}

template <int kTokens>
void tile_rows(const RowDots& d, int64_t token) {
  constexpr int kRows = kTokens <= 4 ? 4 : 2;  // at most 18 sums: the tables and operands take the other registers
  int64_t row = 0;
  for (; row + kRows <= d.rows; row += kRows) tile<kRows, kTokens>(d, row, token);
  for (; row < d.rows; ++row) tile<1, kTokens>(d, row, token);
}

}  // namespace

MEGAMLA_AVX512_VBMI bool scale_steps(const uint8_t* scales, int64_t count, uint32_t* steps) {
  uint8_t smallest = 127;
  uint8_t largest = 127;
  for (int64_t i = 0; i < count; ++i) {
    smallest = std::min(smallest, scales[i]);
    largest = std::max(largest, scales[i]);
    steps[i] = static_cast<uint16_t>(exponent_step(scales[i])) * 0x10001U;
  }
  return shifts_exponents(smallest) && shifts_exponents(largest);
}

void row_dots_avx512(const RowDots& d) {
  using TileRows = void (*)(const RowDots&, int64_t);
  constexpr TileRows kTileRows[] = {tile_rows<1>, tile_rows<2>, tile_rows<3>, tile_rows<4>, tile_rows<5>,
                                    tile_rows<6>, tile_rows<7>, tile_rows<8>, tile_rows<9>};
  constexpr int64_t kMost = std::size(kTileRows);
  for (int64_t token = 0; token < d.tokens;) {
    const int64_t left = d.tokens - token;
    const int64_t count = left <= kMost ? left : std::min(kMost, (left + 1) / 2);
    kTileRows[count - 1](d, token);
    token += count;
  }
}

}  // namespace megamla::cpu::linear

#else

namespace megamla::cpu::linear {
bool scale_steps(const uint8_t*, int64_t, uint32_t*) { return false; }
void row_dots_avx512(const RowDots&) {}
}  // namespace megamla::cpu::linear

#endif
