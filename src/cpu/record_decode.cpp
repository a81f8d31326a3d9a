#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/record_decode.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include <cstring>

#include "cpu/record_codec.hpp"
#include "cpu/simd/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

#if MEGAMLA_PLAIN_TARGET

template <class Record>
void decode_plain(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  float x[format::kHeadDim];
  format::decode_row(Record{}, data, scale, x);
  for (int d = 0; d < format::kHeadDim; ++d) out[d] = format::to_bf16(x[d]);
}
void decode_fp8_528(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  decode_plain<format::Fp8_528>(data, scale, out);
}
void decode_fp8_584(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  decode_plain<format::Fp8_584>(data, scale, out);
}
void decode_nvfp4_288(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  decode_plain<format::Nvfp4_288>(data, scale, out);
}

#else

// True if every code's value is a normal bf16 number or 0, infinite or NaN: nothing is rounded then. The smallest code
// is 2^-9 and the smallest normal number 2^-126.
HWY_INLINE bool has_exact_scales(const uint8_t* scale, int groups) {
  constexpr uint8_t kSmallest = 127 - 126 + 9;
  for (int g = 0; g < groups; ++g) {
    if (scale[g] < kSmallest) return false;
  }
  return true;
}

// kLanes codes as bf16 in the upper halves of the lanes.
template <bool kExact>
HWY_INLINE U32s scaled_e4m3(const uint8_t* codes, F32s scale) {
  const F32s value = hn::Mul(e4m3_values(load_codes(codes)), scale);
  return kExact ? bits(value) : bf16_in_upper_half(value);
}

template <int kGroup, bool kExact>
HWY_INLINE void decode_ue8m0_groups(const uint8_t* data, const uint8_t* scale, int groups, format::Bf16* out) {
  for (int g = 0; g < groups; ++g) {
    const F32s factor = f32(format::ue8m0_to_float(scale[g]));
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += 2 * kLanes) {
      store_upper_halves(scaled_e4m3<kExact>(data + i, factor), scaled_e4m3<kExact>(data + i + kLanes, factor),
                         out + i);
    }
  }
}

template <int kGroup>
HWY_INLINE void decode_ue8m0_groups(const uint8_t* data, const uint8_t* scale, int groups, format::Bf16* out) {
  has_exact_scales(scale, groups) ? decode_ue8m0_groups<kGroup, true>(data, scale, groups, out)
                                  : decode_ue8m0_groups<kGroup, false>(data, scale, groups, out);
}

void decode_fp8_528(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  using Record = format::Fp8_528;
  decode_ue8m0_groups<Record::kScaleGroup>(data, scale, Record::kScaleBytes, out);
}

void decode_fp8_584(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  using Record = format::Fp8_584;
  decode_ue8m0_groups<Record::kScaleGroup>(data, scale, Record::kScaleGroups, out);
  std::memcpy(out + format::kNopeDim, data + format::kNopeDim, format::kRopeDim * sizeof(*out));
}

// A code times a scale is exact in bf16: 2 significant bits times 4.
void decode_nvfp4_288(const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  using Record = format::Nvfp4_288;
  constexpr int kGroup = Record::kScaleGroup;
  float scales[Record::kScaleBytes];
  for (int g = 0; g < Record::kScaleBytes; g += kLanes) {
    hn::StoreU(e4m3_values(load_codes(scale + g)), F32(), scales + g);
  }
  const auto scaled = [&](int d) {
    const F32s value = e2m1_values(load_nibbles(data + d / 2));
    return bits(hn::Mul(value, f32(scales[d / kGroup])));
  };
  for (int d = 0; d < format::kHeadDim; d += 2 * kLanes) {
    store_upper_halves(scaled(d), scaled(d + kLanes), out + d);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(decode_fp8_528);
HWY_EXPORT(decode_fp8_584);
HWY_EXPORT(decode_nvfp4_288);

void decode_record(format::Fp8_528, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  HWY_DYNAMIC_DISPATCH(decode_fp8_528)(data, scale, out);
}
void decode_record(format::Fp8_584, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  HWY_DYNAMIC_DISPATCH(decode_fp8_584)(data, scale, out);
}
void decode_record(format::Nvfp4_288, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  HWY_DYNAMIC_DISPATCH(decode_nvfp4_288)(data, scale, out);
}

}  // namespace megamla::cpu

#endif
