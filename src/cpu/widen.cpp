#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/widen.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include "cpu/simd/lanes-inl.hpp"
#include "cpu/widen.hpp"
#include "cpu/widen_avx512.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kGroup = 32;  // codes of one scale

#if MEGAMLA_PLAIN_TARGET

constexpr int64_t kBlock = 1;

void widen_e4m3_to_bf16(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = format::e4m3_to_float(codes[i]) * scales[i / kGroup];
    out[i].bits = static_cast<uint16_t>(format::bit_cast<uint32_t>(value) >> 16);
  }
}
void widen_e4m3_to_f32(const uint8_t* codes, const float* scales, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = format::e4m3_to_float(codes[i]) * scales[i / kGroup];
}
inline void widen_block(const format::Bf16* values, float* out) { *out = format::to_float(*values); }
inline void narrow_block(const float* values, format::Bf16* out) { *out = format::to_bf16(*values); }

#else

constexpr int64_t kBlock = 2 * kLanes;  // bf16 values of a vector

HWY_INLINE F32s scaled(const uint8_t* codes, F32s scale) { return hn::Mul(e4m3_values(load_codes(codes)), scale); }

// Exact: 3 mantissa bits.
void widen_e4m3_to_bf16(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (has_avx512_vbmi()) return widen_e4m3_avx512(codes, scales, count, out);
#endif
  for (int64_t i = 0; i < count; i += kBlock) {
    const F32s scale = f32(scales[i / kGroup]);
    store_upper_halves(bits(scaled(codes + i, scale)), bits(scaled(codes + i + kLanes, scale)), out + i);
  }
}
void widen_e4m3_to_f32(const uint8_t* codes, const float* scales, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    hn::StoreU(scaled(codes + i, f32(scales[i / kGroup])), F32(), out + i);
  }
}
HWY_INLINE void widen_block(const format::Bf16* values, float* out) {
  for (int64_t i = 0; i < kBlock; i += kLanes) hn::StoreU(load(values + i), F32(), out + i);
}
HWY_INLINE void narrow_block(const float* values, format::Bf16* out) {
  store_upper_halves(bf16_in_upper_half(load(values)), bf16_in_upper_half(load(values + kLanes)), out);
}

#endif

void widen_bf16_to_f32(const format::Bf16* values, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) widen_block(values + i, out + i);
  for (; i < count; ++i) out[i] = format::to_float(values[i]);
}
void narrow_f32_to_bf16(const float* values, int64_t count, format::Bf16* out) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) narrow_block(values + i, out + i);
  for (; i < count; ++i) out[i] = format::to_bf16(values[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(widen_e4m3_to_bf16);
HWY_EXPORT(widen_e4m3_to_f32);
HWY_EXPORT(widen_bf16_to_f32);
HWY_EXPORT(narrow_f32_to_bf16);

void widen_e4m3(const uint8_t* codes, const float* scales, int64_t count, format::Bf16* out) {
  HWY_DYNAMIC_DISPATCH(widen_e4m3_to_bf16)(codes, scales, count, out);
}
void widen_e4m3(const uint8_t* codes, const float* scales, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_e4m3_to_f32)(codes, scales, count, out);
}
void widen_bf16(const format::Bf16* values, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_bf16_to_f32)(values, count, out);
}
void narrow_to_bf16(const float* values, int64_t count, format::Bf16* out) {
  HWY_DYNAMIC_DISPATCH(narrow_f32_to_bf16)(values, count, out);
}

}  // namespace megamla::cpu

#endif
