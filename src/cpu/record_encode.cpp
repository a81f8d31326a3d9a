#include "cpu/simd/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/record_encode.cpp"
#include <hwy/foreach_target.h>
// Behind foreach_target.h.
#include <cstring>

#include "cpu/record_codec.hpp"
#include "cpu/simd/bf16_groups-inl.hpp"
#include "cpu/simd/lanes-inl.hpp"
#include "plan/insert_rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace megamla::cpu {
namespace HWY_NAMESPACE {

template <class Record>
HWY_NOINLINE void insert_plain(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                               uint8_t* data, uint8_t* scale) {
  float x[format::kHeadDim];
  plan::rotated_latent(writer, latent, cos_sin, x);
  format::encode_row(Record{}, x, data, scale);
}

#if MEGAMLA_PLAIN_TARGET

template <class Record>
void insert(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, uint8_t* data, uint8_t* scale) {
  insert_plain<Record>(writer, latent, cos_sin, data, scale);
}

#else

// A row of bf16 values; where the rotated dims lie is another matter.
struct Bf16Row {
  const format::Bf16* nope;
  const format::Bf16* rope;
  const format::Bf16* at(int d) const { return d < format::kNopeDim ? nope + d : rope + (d - format::kNopeDim); }
};

// --- encode: a row, all of whose values are finite; else false.

template <int kGroup, int kGroups>
HWY_INLINE bool encode_ue8m0_groups(const Bf16Row& row, uint8_t* data, uint8_t* scale) {
  constexpr int kPadded = (kGroups + kLanes - 1) / kLanes * kLanes;  // whole vectors
  uint8_t scales[kPadded];
  uint32_t smallest[kPadded];
  U32s largest = u32(0);
  for (int first = 0; first < kGroups; first += kLanes) {
    const F32s maxima = bf16_group_maxima<kGroup>(kGroups - first, [&](int d) { return row.at(first * kGroup + d); });
    largest = hn::Max(largest, bits(maxima));
    const U32s bytes = group_scales(hn::Max(maxima, f32(format::kAmaxFloor)));
    store_bytes(bytes, scales + first);
    hn::StoreU(smallest_coded(bytes), U32(), smallest + first);
  }
  if (!all_finite(largest)) return false;
  std::memcpy(scale, scales, kGroups);
  for (int g = 0; g < kGroups; ++g) {
    const Halves subtrahend = hn::BitCast(U16Wide(), u32(smallest[g]));
    for (int d = g * kGroup; d < (g + 1) * kGroup; d += kWideLanes) {
      store_bytes(e4m3_codes(load_halves(row.at(d)), subtrahend), data + d);
    }
  }
  return true;
}

HWY_INLINE bool encode(format::Fp8_528 /*record*/, const Bf16Row& row, uint8_t* data, uint8_t* scale) {
  using Record = format::Fp8_528;
  return encode_ue8m0_groups<Record::kScaleGroup, Record::kScaleBytes>(row, data, scale);
}

HWY_INLINE bool encode(format::Fp8_584 /*record*/, const Bf16Row& row, uint8_t* data, uint8_t* scale) {
  using Record = format::Fp8_584;
  if (!encode_ue8m0_groups<Record::kScaleGroup, Record::kScaleGroups>(row, data, scale)) return false;
  scale[Record::kScaleGroups] = 0;
  auto* rope = reinterpret_cast<format::Bf16*>(data + format::kNopeDim);
  for (int i = 0; i < format::kRopeDim; i += 2 * kLanes) {  // for NaN alone this is more than a copy
    store_upper_halves(bf16_in_upper_half(load(row.rope + i)), bf16_in_upper_half(load(row.rope + i + kLanes)),
                       rope + i);
  }
  return true;
}

HWY_INLINE bool encode(format::Nvfp4_288 /*record*/, const Bf16Row& row, uint8_t* data, uint8_t* scale) {
  using Record = format::Nvfp4_288;
  constexpr int kTileDims = kChunk * kWideLanes;
  static_assert(Record::kScaleGroup == 2 * kChunk);
  Halves largest = u16(0);
  for (int first = 0; first < format::kHeadDim; first += kTileDims) {
    Halves x[kChunk];
#pragma GCC unroll 8
    for (int j = 0; j < kChunk; ++j) x[j] = load_halves(row.at(first + j * kWideLanes));
    transpose_chunks(x);
    const Halves maxima = chunk_pair_maxima(x);
    largest = hn::Max(largest, maxima);
    const Nvfp4Scales scales = nvfp4_scales(maxima);
    store_scales(scales.codes, scale + first / Record::kScaleGroup);
    Halves midpoints[kE2m1Midpoints];
    e2m1_midpoints(scales, midpoints);
    store_chunks(packed_e2m1_codes(x, midpoints), packed_e2m1_codes(x + 4, midpoints), data + first / 2);
  }
  return hn::AllTrue(U16Wide(), hn::Lt(largest, u16(0x7f80)));
}

// --- insert

// How fp32 becomes bf16 here. Rounding to odd sets the last bit of whatever is cut off: between any two numbers of
// fewer significant bits, bf16 or not, the result lies where the number itself does. Codes and scales change at numbers
// of at most 7 bits, so those of the rounded row are those of the row.
//
// With one exception: the scale of an nvfp4 group is that of an fp32 product, max|x| times the fp32 next to 1/6, which
// may be the same for a boundary and for the fp32 just below it, whose lower half is all ones.
enum class ToBf16 { kNearest, kOdd };

HWY_INLINE U32s rounded_to_odd(F32s x) {
  const U32s lost = hn::And(bits(x), u32(0xffff));
  return hn::Or(bits(x), hn::And(hn::Add(lost, u32(0xffff)), u32(0x10000)));
}

// False if kOdd met the exception.
template <ToBf16 kRounding>
HWY_INLINE bool rotate_rope(const format::Bf16* rope, const float* cos_sin, format::Bf16* to) {
  constexpr int kPairs = format::kRopeDim / 2;
  U32s most_lost = u32(0);
  for (int j = 0; j < kPairs; j += kLanes) {
    const Pairs y = rotate(load_pairs(rope + 2 * j), load(cos_sin + j), load(cos_sin + kPairs + j));
    if constexpr (kRounding == ToBf16::kNearest) {
      store_pairs(bf16_in_upper_half(y.x0), bf16_in_upper_half(y.x1), to + 2 * j);
    } else {
      const auto lost = [](F32s x) { return hn::And(bits(x), u32(0xffff)); };
      most_lost = hn::Max(most_lost, hn::Max(lost(y.x0), lost(y.x1)));
      store_pairs(rounded_to_odd(y.x0), rounded_to_odd(y.x1), to + 2 * j);
    }
  }
  return hn::AllTrue(U32(), hn::Lt(most_lost, u32(0xffff)));
}

template <class Record>
void insert(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, uint8_t* data, uint8_t* scale) {
  alignas(64) format::Bf16 rope[format::kRopeDim];
  Bf16Row row{latent, latent + format::kNopeDim};
  bool exact = true;
  if (cos_sin != nullptr) {
    const bool nearest = writer == MEGAMLA_WRITER_WINDOW || Record::kFormat == MEGAMLA_KV_FP8_584;
    exact = nearest ? rotate_rope<ToBf16::kNearest>(row.rope, cos_sin, rope)
                    : rotate_rope<ToBf16::kOdd>(row.rope, cos_sin, rope);
    row.rope = rope;
  }
  if (!exact || !encode(Record{}, row, data, scale)) insert_plain<Record>(writer, latent, cos_sin, data, scale);
}

#endif

void insert_fp8_528(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, uint8_t* data,
                    uint8_t* scale) {
  insert<format::Fp8_528>(writer, latent, cos_sin, data, scale);
}
void insert_fp8_584(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, uint8_t* data,
                    uint8_t* scale) {
  insert<format::Fp8_584>(writer, latent, cos_sin, data, scale);
}
void insert_nvfp4_288(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin, uint8_t* data,
                      uint8_t* scale) {
  insert<format::Nvfp4_288>(writer, latent, cos_sin, data, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace megamla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace megamla::cpu {

HWY_EXPORT(insert_fp8_528);
HWY_EXPORT(insert_fp8_584);
HWY_EXPORT(insert_nvfp4_288);

void insert_record(format::Fp8_528, megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                   uint8_t* data, uint8_t* scale) {
  HWY_DYNAMIC_DISPATCH(insert_fp8_528)(writer, latent, cos_sin, data, scale);
}
void insert_record(format::Fp8_584, megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                   uint8_t* data, uint8_t* scale) {
  HWY_DYNAMIC_DISPATCH(insert_fp8_584)(writer, latent, cos_sin, data, scale);
}
void insert_record(format::Nvfp4_288, megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin,
                   uint8_t* data, uint8_t* scale) {
  HWY_DYNAMIC_DISPATCH(insert_nvfp4_288)(writer, latent, cos_sin, data, scale);
}

}  // namespace megamla::cpu

#endif
