#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/record_encode.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include <cstring>

#include "cpu/record_codec.hpp"
#include "cpu/simd/lanes-inl.hpp"
#include "plan/insert_rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

#if MEGAMLA_PLAIN_TARGET

void encode_fp8_528(const float* x, uint8_t* data, uint8_t* scale) {
  format::encode_row(format::Fp8_528{}, x, data, scale);
}
void encode_fp8_584(const float* x, uint8_t* data, uint8_t* scale) {
  format::encode_row(format::Fp8_584{}, x, data, scale);
}
void encode_nvfp4_288(const float* x, uint8_t* data, uint8_t* scale) {
  format::encode_row(format::Nvfp4_288{}, x, data, scale);
}
void rotate_latent(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, float* x) {
  plan::rotated_latent(writer, latent, cos_sin, x);
}

#else

// Groups of a record, as many as fill whole vectors.
constexpr int padded(int groups) { return (groups + kLanes - 1) / kLanes * kLanes; }

// max|x| of each group, 0 behind the last. False if a value of the row is NaN or infinite.
template <int kGroup, int kGroups>
HWY_INLINE bool group_maxima(const float* x, float* maxima) {
  U32s largest = u32(0);
  for (int first = 0; first < kGroups; first += kLanes) {
    const U32s most =
        group_magnitudes<kGroup>(kGroups - first, [&](int g, int i) { return load(x + (first + g) * kGroup + i); });
    hn::StoreU(floats(most), F32(), maxima + first);
    largest = hn::Max(largest, most);
  }
  return all_finite(largest);
}

// The ue8m0 groups of a record, all values finite.
template <int kGroup, int kGroups>
HWY_INLINE bool encode_ue8m0_groups(const float* x, uint8_t* data, uint8_t* scale) {
  float maxima[padded(kGroups)];
  if (!group_maxima<kGroup, kGroups>(x, maxima)) return false;
  uint8_t scales[padded(kGroups)];
  float factors[padded(kGroups)];
  for (int g = 0; g < kGroups; g += kLanes) {
    const F32s bounded = hn::Max(load(maxima + g), f32(format::kAmaxFloor));
    const U32s bytes = group_scales(bounded);
    store_bytes(bytes, scales + g);
    hn::StoreU(inverse_scales(bytes), F32(), factors + g);
  }
  std::memcpy(scale, scales, kGroups);
  for (int g = 0; g < kGroups; ++g) {
    const F32s factor = f32(factors[g]);
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) {
      store_bytes(e4m3_codes(hn::Mul(load(x + i), factor)), data + i);
    }
  }
  return true;
}

void encode_fp8_528(const float* x, uint8_t* data, uint8_t* scale) {
  using Record = format::Fp8_528;
  if (encode_ue8m0_groups<Record::kScaleGroup, Record::kScaleBytes>(x, data, scale)) return;
  format::encode_row(Record{}, x, data, scale);
}

void encode_fp8_584(const float* x, uint8_t* data, uint8_t* scale) {
  using Record = format::Fp8_584;
  if (!encode_ue8m0_groups<Record::kScaleGroup, Record::kScaleGroups>(x, data, scale)) {
    return format::encode_row(Record{}, x, data, scale);
  }
  scale[Record::kScaleGroups] = 0;
  auto* rope = reinterpret_cast<format::Bf16*>(data + format::kNopeDim);
  for (int i = 0; i < format::kRopeDim; i += 2 * kLanes) {
    const float* values = x + format::kNopeDim + i;
    store_upper_halves(bf16_in_upper_half(load(values)), bf16_in_upper_half(load(values + kLanes)), rope + i);
  }
}

void encode_nvfp4_288(const float* x, uint8_t* data, uint8_t* scale) {
  using Record = format::Nvfp4_288;
  float scales[padded(Record::kScaleBytes)];
  if (!group_maxima<Record::kScaleGroup, Record::kScaleBytes>(x, scales)) {
    return format::encode_row(Record{}, x, data, scale);
  }
  for (int g = 0; g < Record::kScaleBytes; g += kLanes) {
    const F32s wanted = hn::Mul(load(scales + g), f32(1.0F / 6.0F));
    const F32s bounded = hn::Min(hn::Max(wanted, f32(0x1p-9F)), f32(format::kE4m3Max));
    store_bytes(e4m3_codes(bounded), scale + g);
    hn::StoreU(e4m3_values(load_codes(scale + g)), F32(), scales + g);
  }
  const auto codes = [&](int d) { return e2m1_codes(hn::Div(load(x + d), f32(scales[d / Record::kScaleGroup]))); };
  for (int d = 0; d < format::kHeadDim; d += 2 * kLanes) {
    store_nibbles(codes(d), codes(d + kLanes), data + d / 2);
  }
}

void rotate_latent(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, float* x) {
  const int plain = cos_sin == nullptr ? format::kHeadDim : format::kNopeDim;
  for (int d = 0; d < plain; d += kLanes) hn::StoreU(load(latent + d), F32(), x + d);
  if (cos_sin == nullptr) return;
  constexpr int kPairs = format::kRopeDim / 2;
  for (int j = 0; j < kPairs; j += kLanes) {
    Pairs y = rotate(load_pairs(latent + format::kNopeDim + 2 * j), load(cos_sin + j), load(cos_sin + kPairs + j));
    if (writer == MEGAMLA_WRITER_WINDOW) y = {round_to_bf16(y.x0), round_to_bf16(y.x1)};
    hn::StoreInterleaved2(y.x0, y.x1, F32(), x + format::kNopeDim + 2 * j);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(encode_fp8_528);
HWY_EXPORT(encode_fp8_584);
HWY_EXPORT(encode_nvfp4_288);
HWY_EXPORT(rotate_latent);

void encode_record(format::Fp8_528, const float* x, uint8_t* data, uint8_t* scale) {
  HWY_DYNAMIC_DISPATCH(encode_fp8_528)(x, data, scale);
}
void encode_record(format::Fp8_584, const float* x, uint8_t* data, uint8_t* scale) {
  HWY_DYNAMIC_DISPATCH(encode_fp8_584)(x, data, scale);
}
void encode_record(format::Nvfp4_288, const float* x, uint8_t* data, uint8_t* scale) {
  HWY_DYNAMIC_DISPATCH(encode_nvfp4_288)(x, data, scale);
}
void rotated_latent(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, float* x) {
  HWY_DYNAMIC_DISPATCH(rotate_latent)(writer, latent, cos_sin, x);
}

}  // namespace megamla::cpu

#endif
