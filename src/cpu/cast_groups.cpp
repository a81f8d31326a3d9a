#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/cast_groups.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include <algorithm>

#include "cpu/cast_groups.hpp"
#include "cpu/simd/lanes-inl.hpp"
#include "format/output_cast.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

constexpr int kGroup = format::kCastGroup;

inline float value_of(float x) { return x; }
inline float value_of(format::Bf16 x) { return format::to_float(x); }

template <bool kMxfp8, class T>
uint8_t cast_plain_group(const T* x, uint8_t* data) {
  float values[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    values[i] = kMxfp8 ? format::round_to_bf16(value_of(x[i])) : value_of(x[i]);
  }
  return kMxfp8 ? format::cast_mxfp8_group(values, data) : format::cast_output_group(values, data);
}

template <bool kMxfp8, class T>
void cast_plain(const T* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  for (int64_t g = 0; g < groups; ++g) scales[g] = cast_plain_group<kMxfp8>(x + g * kGroup, data + g * data_stride);
}

#if MEGAMLA_PLAIN_TARGET

template <bool kMxfp8, class T>
void cast(const T* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  cast_plain<kMxfp8>(x, groups, data, data_stride, scales);
}

#else

template <bool kMxfp8, class T>
HWY_INLINE F32s load_value(const T* x) {
  const F32s value = load(x);
  return kMxfp8 && sizeof(T) == sizeof(float) ? round_to_bf16(value) : value;
}

// As many groups as a vector has lanes. Those with a value that is not finite go by the rules for such values.
template <bool kMxfp8, class T>
HWY_INLINE void cast_some(const T* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  const U32s most =
      group_magnitudes<kGroup>(groups, [&](int g, int i) { return load_value<kMxfp8>(x + g * kGroup + i); });
  if (!all_finite(most)) return cast_plain<kMxfp8>(x, groups, data, data_stride, scales);
  const U32s bytes = group_scales(kMxfp8 ? floats(most) : hn::Max(floats(most), f32(format::kAmaxFloor)));
  uint8_t packed[kLanes];
  float factors[kLanes];
  store_bytes(bytes, packed);
  hn::StoreU(inverse_scales(bytes), F32(), factors);
  for (int64_t g = 0; g < groups; ++g) {
    scales[g] = packed[g];
    for (int i = 0; i < kGroup; i += kLanes) {
      const F32s scaled = hn::Mul(load_value<kMxfp8>(x + g * kGroup + i), f32(factors[g]));
      store_bytes(e4m3_codes(scaled), data + g * data_stride + i);
    }
  }
}

template <bool kMxfp8, class T>
void cast(const T* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  for (int64_t g = 0; g < groups; g += kLanes) {
    cast_some<kMxfp8>(x + g * kGroup, std::min<int64_t>(kLanes, groups - g), data + g * data_stride, data_stride,
                      scales + g);
  }
}

#endif

void output_f32(const float* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  cast<false>(x, groups, data, data_stride, scales);
}
void output_bf16(const format::Bf16* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  cast<false>(x, groups, data, data_stride, scales);
}
void mxfp8_f32(const float* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  cast<true>(x, groups, data, data_stride, scales);
}
void mxfp8_bf16(const format::Bf16* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  cast<true>(x, groups, data, data_stride, scales);
}

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(output_f32);
HWY_EXPORT(output_bf16);
HWY_EXPORT(mxfp8_f32);
HWY_EXPORT(mxfp8_bf16);

void cast_output_groups(const float* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(output_f32)(x, groups, data, data_stride, scales);
}
void cast_output_groups(const format::Bf16* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(output_bf16)(x, groups, data, data_stride, scales);
}
void cast_mxfp8_groups(const float* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(mxfp8_f32)(x, groups, data, data_stride, scales);
}
void cast_mxfp8_groups(const format::Bf16* x, int64_t groups, uint8_t* data, int64_t data_stride, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(mxfp8_bf16)(x, groups, data, data_stride, scales);
}

}  // namespace megamla::cpu

#endif
