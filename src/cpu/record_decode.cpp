#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/record_decode.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include <array>
#include <cstring>

#include "cpu/record_codec.hpp"
#include "cpu/simd/bf16_groups-inl.hpp"
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

#if MEGAMLA_LOOKUP_32

constexpr uint16_t kFirstNormal = 8;  // codes below are subnormal
constexpr uint16_t kNanCode = 0x7f;

// bf16 of the subnormal codes, and 0 in the rest of the table.
constexpr auto kSubnormals = [] {
  std::array<uint16_t, kWideLanes> values{};
  for (uint8_t code = 0; code < kFirstNormal; ++code) values[code] = format::to_bf16(format::e4m3_to_float(code)).bits;
  return values;
}();

// True if the scales leave every finite code's value a normal bf16 number or 0: bf16 bits then follow from the code's
// by shifting and adding. The smallest code is 2^-9, and all are below 2^9.
HWY_INLINE bool has_plain_scales(const uint8_t* scale, int groups) {
  uint8_t least = 255;
  uint8_t most = 0;
  for (int g = 0; g < groups; ++g) {
    least = scale[g] < least ? scale[g] : least;
    most = scale[g] > most ? scale[g] : most;
  }
  return least >= 127 - 126 + 9 && most <= 127 + 127 - 8;
}

// False if a code is NaN.
template <int kGroup>
HWY_INLINE bool decode_plain_groups(const uint8_t* data, const uint8_t* scale, int groups, format::Bf16* out) {
  const hn::Rebind<uint8_t, U16Wide> du8;
  const Halves subnormals = hn::LoadU(U16Wide(), kSubnormals.data());
  const auto not_zero = hn::Ne(subnormals, u16(0));
  Halves most = u16(0);
  for (int g = 0; g < groups; ++g) {
    // Exponents of the two formats: biases 127 and 7, and the scale's 127.
    const Halves normal_shift = u16(static_cast<uint16_t>((scale[g] - 7) * 128));
    const Halves scaled_shift = u16(static_cast<uint16_t>((scale[g] - 127) * 128));
    const Halves table = hn::IfThenElseZero(not_zero, hn::Add(subnormals, scaled_shift));
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kWideLanes) {
      const Halves codes = hn::PromoteTo(U16Wide(), hn::LoadU(du8, data + i));
      const Halves magnitude = hn::And(codes, u16(0x7f));
      most = hn::Max(most, magnitude);
      const Halves normal = hn::Add(hn::ShiftLeft<4>(magnitude), normal_shift);
      const Halves value = hn::IfThenElse(hn::Lt(magnitude, u16(kFirstNormal)), lookup(table, magnitude), normal);
      hn::StoreU(hn::OrAnd(value, hn::ShiftLeft<8>(codes), u16(0x8000)), U16Wide(),
                 reinterpret_cast<uint16_t*>(out + i));
    }
  }
  return hn::AllTrue(U16Wide(), hn::Lt(most, u16(kNanCode)));
}

#endif

template <int kGroup>
HWY_INLINE void decode_ue8m0_groups(const uint8_t* data, const uint8_t* scale, int groups, format::Bf16* out) {
#if MEGAMLA_LOOKUP_32
  if (has_plain_scales(scale, groups) && decode_plain_groups<kGroup>(data, scale, groups, out)) return;
#endif
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
#if MEGAMLA_LOOKUP_32
  // Two groups at a time: a table of both groups' values, scaled, and 16 bytes of which each fills two lanes.
  const F32s values = load(kE2m1Values.data());
  const U32s second_half = hn::IfThenElseZero(hn::Gt(hn::Iota(U32(), 0), u32(kLanes / 2 - 1)), u32(0x100010));
  for (int g = 0; g < Record::kScaleBytes; g += 2) {
    const auto scaled = [&](int group) { return halves(bits(hn::Mul(values, f32(scales[group])))); };
    const Halves table = hn::ConcatOdd(U16Wide(), scaled(g + 1), scaled(g));
    const U32s bytes = load_codes(data + g * kGroup / 2);
    const U32s nibbles = hn::OrAnd(second_half, hn::Or(bytes, hn::ShiftLeft<12>(bytes)), u32(0xf000f));
    hn::StoreU(lookup(table, halves(nibbles)), U16Wide(), reinterpret_cast<uint16_t*>(out + g * kGroup));
  }
#else
  const auto scaled = [&](int d) {
    const F32s value = e2m1_values(load_nibbles(data + d / 2));
    return bits(hn::Mul(value, f32(scales[d / kGroup])));
  };
  for (int d = 0; d < format::kHeadDim; d += 2 * kLanes) {
    store_upper_halves(scaled(d), scaled(d + kLanes), out + d);
  }
#endif
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
