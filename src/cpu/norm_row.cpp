#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm_row.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include <cmath>

#include "cpu/norm_row.hpp"
#include "cpu/simd/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kSums = 8;  // partial sums of squares: dim d goes to sum d % 8, those of a last part block to sum 0

inline double value_of(float x) { return static_cast<double>(x); }
inline double value_of(format::Bf16 x) { return static_cast<double>(format::to_float(x)); }

#if MEGAMLA_PLAIN_TARGET

template <class T>
void add_squares(const T* x, int64_t blocks, double* sums) {
  for (int64_t i = 0; i < blocks * kSums; ++i) sums[i % kSums] += value_of(x[i]) * value_of(x[i]);
}
template <class T>
int64_t scale_blocks(const T*, const format::Bf16*, int64_t, double, format::Bf16*) {
  return 0;
}

#else

using F64 = hn::CappedTag<double, kSums>;
using F64s = hn::VFromD<F64>;
constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(F64()));

HWY_INLINE F64s load_doubles(const float* x) { return hn::PromoteTo(F64(), hn::LoadU(hn::Rebind<float, F64>(), x)); }
HWY_INLINE F64s load_doubles(const format::Bf16* x) {
  const hn::Rebind<uint16_t, F64> du16;
  const hn::Rebind<uint32_t, F64> du32;
  const auto upper = hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(x))));
  return hn::PromoteTo(F64(), hn::BitCast(hn::Rebind<float, F64>(), upper));
}

template <class T>
HWY_INLINE void add_squares(const T* x, int64_t blocks, double* sums) {
  F64s sum[kSums / kDoubles];
  for (F64s& lanes : sum) lanes = hn::Zero(F64());
  for (int64_t i = 0; i < blocks * kSums; i += kSums) {
    for (int64_t s = 0; s < kSums; s += kDoubles) {
      const F64s value = load_doubles(x + i + s);
      sum[s / kDoubles] = hn::Add(sum[s / kDoubles], hn::Mul(value, value));
    }
  }
  for (int64_t s = 0; s < kSums; s += kDoubles) hn::StoreU(sum[s / kDoubles], F64(), sums + s);
}

// y = x * factor * weight for whole vectors of bf16; returns how many values that were.
template <class T>
HWY_INLINE int64_t scale_blocks(const T* x, const format::Bf16* weight, int64_t width, double factor, format::Bf16* y) {
  constexpr int64_t kBlock = 2 * kLanes;
  const F64s factors = hn::Set(F64(), factor);
  int64_t i = 0;
  for (; i + kBlock <= width; i += kBlock) {
    HWY_ALIGN float scaled[kBlock];
    for (int64_t j = 0; j < kBlock; j += kDoubles) {
      const F64s value = hn::Mul(hn::Mul(load_doubles(x + i + j), factors), load_doubles(weight + i + j));
      hn::StoreU(hn::DemoteTo(hn::Rebind<float, F64>(), value), hn::Rebind<float, F64>(), scaled + j);
    }
    store_upper_halves(bf16_in_upper_half(load(scaled)), bf16_in_upper_half(load(scaled + kLanes)), y + i);
  }
  return i;
}

#endif

template <class T>
HWY_INLINE void norm(const T* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y) {
  double sums[kSums] = {};
  const int64_t blocks = width / kSums;
  add_squares(x, blocks, sums);
  for (int64_t i = blocks * kSums; i < width; ++i) sums[0] += value_of(x[i]) * value_of(x[i]);
  double squares = 0;
  for (const double sum : sums) squares += sum;
  const double mean = squares / static_cast<double>(width) + static_cast<double>(eps);
  const double factor = mean > 0 ? 1 / std::sqrt(mean) : 0;
  for (int64_t i = scale_blocks(x, weight, width, factor, y); i < width; ++i) {
    const double weighted = value_of(x[i]) * factor * value_of(weight[i]);
    y[i] = format::to_bf16(static_cast<float>(weighted));
  }
}

void norm_f32(const float* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y) {
  norm(x, weight, width, eps, y);
}
void norm_bf16(const format::Bf16* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y) {
  norm(x, weight, width, eps, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(norm_f32);
HWY_EXPORT(norm_bf16);

void norm_row(const float* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y) {
  HWY_DYNAMIC_DISPATCH(norm_f32)(x, weight, width, eps, y);
}
void norm_row(const format::Bf16* x, const format::Bf16* weight, int64_t width, float eps, format::Bf16* y) {
  HWY_DYNAMIC_DISPATCH(norm_bf16)(x, weight, width, eps, y);
}

}  // namespace megamla::cpu

#endif
