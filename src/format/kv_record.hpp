// The KV records of contract section 3: one trait per format, and the row codecs.
#pragma once

#include <cstdint>

#include "format/bf16.hpp"
#include "format/small_float.hpp"
#include "megamla/types.h"

namespace megamla::format {

constexpr int kHeadDim = 512;
constexpr int kRopeDim = 64;
constexpr int kNopeDim = kHeadDim - kRopeDim;  // 448; the rotated dims are the last 64

// Byte i of the data row is dim i (e4m3); scale byte g (ue8m0) covers dims 32g .. 32g+31.
struct Fp8_528 {
  static constexpr megamla_kv_format kFormat = MEGAMLA_KV_FP8_528;
  static constexpr int kDataBytes = 512;
  static constexpr int kScaleBytes = 16;
  static constexpr int kScaleGroup = 32;
};

// Byte i holds dim 2i in its low nibble and dim 2i+1 in its high nibble (e2m1); scale byte g (e4m3) covers dims 16g ..
// 16g+15.
struct Nvfp4_288 {
  static constexpr megamla_kv_format kFormat = MEGAMLA_KV_NVFP4_288;
  static constexpr int kDataBytes = 256;
  static constexpr int kScaleBytes = 32;
  static constexpr int kScaleGroup = 16;
};

// Bytes 0..447 are dims 0..447 (e4m3), bytes 448..575 dims 448..511 as little-endian bf16; scale byte g < 7 (ue8m0)
// covers dims 64g .. 64g+63, scale byte 7 is padding and 0.
struct Fp8_584 {
  static constexpr megamla_kv_format kFormat = MEGAMLA_KV_FP8_584;
  static constexpr int kDataBytes = kNopeDim + 2 * kRopeDim;
  static constexpr int kScaleBytes = 8;
  static constexpr int kScaleGroup = 64;
  static constexpr int kScaleGroups = 7;
};

// f(the trait of a format), and its result. `kind` is a format: NONE has no records.
template <class F>
MEGAMLA_HD constexpr auto with_record(megamla_kv_format kind, F&& f) {
  switch (kind) {
    case MEGAMLA_KV_NVFP4_288:
      return f(Nvfp4_288{});
    case MEGAMLA_KV_FP8_584:
      return f(Fp8_584{});
    default:
      return f(Fp8_528{});
  }
}

MEGAMLA_HD constexpr int64_t data_bytes(megamla_kv_format kind) {
  return kind == MEGAMLA_KV_FP8_528     ? Fp8_528::kDataBytes
         : kind == MEGAMLA_KV_NVFP4_288 ? Nvfp4_288::kDataBytes
         : kind == MEGAMLA_KV_FP8_584   ? Fp8_584::kDataBytes
                                        : 0;
}
MEGAMLA_HD constexpr int64_t scale_bytes(megamla_kv_format kind) {
  return kind == MEGAMLA_KV_FP8_528     ? Fp8_528::kScaleBytes
         : kind == MEGAMLA_KV_NVFP4_288 ? Nvfp4_288::kScaleBytes
         : kind == MEGAMLA_KV_FP8_584   ? Fp8_584::kScaleBytes
                                        : 0;
}
MEGAMLA_HD constexpr int64_t record_bytes(megamla_kv_format kind) { return data_bytes(kind) + scale_bytes(kind); }

// Bytes that vLLM rounds a page up to a multiple of.
MEGAMLA_HD constexpr int64_t page_alignment(megamla_kv_format kind) {
  return kind == MEGAMLA_KV_NVFP4_288 ? 256 : kind == MEGAMLA_KV_FP8_584 ? 576 : 512;
}

constexpr const char* name(megamla_kv_format kind) {
  switch (kind) {
    case MEGAMLA_KV_NONE:
      return "none";
    case MEGAMLA_KV_FP8_528:
      return "fp8_528";
    case MEGAMLA_KV_NVFP4_288:
      return "nvfp4_288";
    case MEGAMLA_KV_FP8_584:
      return "fp8_584";
  }
  return "?";
}

constexpr float kAmaxFloor = 1e-4F;  // of the ue8m0 casts: byte 105 for an all-zero group

namespace detail {

MEGAMLA_HD constexpr float magnitude(float x) { return bit_cast<float>(bit_cast<uint32_t>(x) & 0x7fffffffu); }
MEGAMLA_HD constexpr bool is_nan(float x) { return (bit_cast<uint32_t>(x) & 0x7fffffffu) > 0x7f800000u; }
MEGAMLA_HD constexpr bool is_finite(float x) { return (bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }

// max|x|, NaN ignored.
MEGAMLA_HD constexpr float amax(const float* x, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) {
    const float a = magnitude(x[i]);
    if (a > largest) largest = a;
  }
  return largest;
}

// The scale of a ue8m0 group of a record, and what its values are multiplied by before they are rounded. A non-finite
// value spoils its own group alone: NaN is stored as -448 and does not count for the maximum; an infinity makes the
// scale byte 255 (NaN), the finite values of the group zeros that keep their sign.
struct Ue8m0Group {
  uint8_t scale;
  float factor;
};
MEGAMLA_HD constexpr Ue8m0Group ue8m0_group(float largest) {
  if (!is_finite(largest)) return {0xff, 0};
  const int e = group_exponent(largest > kAmaxFloor ? largest : kAmaxFloor);
  return {static_cast<uint8_t>(e + 127), inverse_power_of_two(e)};
}
MEGAMLA_HD constexpr uint8_t encode_ue8m0_value(Ue8m0Group group, float x) {
  if (is_nan(x)) return 0xfe;
  if (group.scale != 0xff) return float_to_e4m3(x * group.factor);
  return is_finite(x) ? static_cast<uint8_t>((bit_cast<uint32_t>(x) >> 24) & 0x80u) : uint8_t{0xfe};
}
MEGAMLA_HD constexpr void encode_ue8m0_group(const float* x, int count, uint8_t* data, uint8_t* scale) {
  const Ue8m0Group group = ue8m0_group(amax(x, count));
  *scale = group.scale;
  for (int i = 0; i < count; ++i) data[i] = encode_ue8m0_value(group, x[i]);
}

// The scale code of an nvfp4 group.
MEGAMLA_HD constexpr uint8_t nvfp4_scale(float largest) {
  constexpr float kSixth = 1.0F / 6.0F;
  constexpr float kSmallestScale = 0x1p-9F;
  const float wanted = largest * kSixth;
  return float_to_e4m3(wanted < kSmallestScale ? kSmallestScale : wanted > kE4m3Max ? kE4m3Max : wanted);
}

MEGAMLA_HD inline float ieee_divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

}  // namespace detail

// encode_row: x[512] -> data and scale bytes. decode_row: exactly code * scale, before the rounding to bf16 that the
// caller of the contract sees.
MEGAMLA_HD inline void encode_row(Fp8_528, const float* x, uint8_t* data, uint8_t* scale) {
  for (int g = 0; g < Fp8_528::kScaleBytes; ++g) {
    detail::encode_ue8m0_group(x + g * Fp8_528::kScaleGroup, Fp8_528::kScaleGroup, data + g * Fp8_528::kScaleGroup,
                               scale + g);
  }
}

MEGAMLA_HD inline void encode_row(Fp8_584, const float* x, uint8_t* data, uint8_t* scale) {
  for (int g = 0; g < Fp8_584::kScaleGroups; ++g) {
    detail::encode_ue8m0_group(x + g * Fp8_584::kScaleGroup, Fp8_584::kScaleGroup, data + g * Fp8_584::kScaleGroup,
                               scale + g);
  }
  scale[Fp8_584::kScaleGroups] = 0;
  for (int i = 0; i < kRopeDim; ++i) {
    const uint16_t bits = to_bf16(x[kNopeDim + i]).bits;
    data[kNopeDim + 2 * i] = static_cast<uint8_t>(bits & 0xffu);
    data[kNopeDim + 2 * i + 1] = static_cast<uint8_t>(bits >> 8);
  }
}

MEGAMLA_HD inline void encode_row(Nvfp4_288, const float* x, uint8_t* data, uint8_t* scale) {
  for (int g = 0; g < Nvfp4_288::kScaleBytes; ++g) {
    const float* values = x + g * Nvfp4_288::kScaleGroup;
    scale[g] = detail::nvfp4_scale(detail::amax(values, Nvfp4_288::kScaleGroup));
    const float divisor = e4m3_to_float(scale[g]);
    for (int i = 0; i < Nvfp4_288::kScaleGroup; i += 2) {
      const uint8_t low = float_to_e2m1(detail::ieee_divide(values[i], divisor));
      const uint8_t high = float_to_e2m1(detail::ieee_divide(values[i + 1], divisor));
      data[(g * Nvfp4_288::kScaleGroup + i) / 2] = static_cast<uint8_t>(low | (high << 4));
    }
  }
}

MEGAMLA_HD inline void decode_row(Fp8_528, const uint8_t* data, const uint8_t* scale, float* x) {
  for (int g = 0; g < Fp8_528::kScaleBytes; ++g) {
    const float factor = ue8m0_to_float(scale[g]);
    for (int d = g * Fp8_528::kScaleGroup; d < (g + 1) * Fp8_528::kScaleGroup; ++d)
      x[d] = e4m3_to_float(data[d]) * factor;
  }
}

MEGAMLA_HD inline void decode_row(Fp8_584, const uint8_t* data, const uint8_t* scale, float* x) {
  for (int d = 0; d < kNopeDim; ++d) x[d] = e4m3_to_float(data[d]) * ue8m0_to_float(scale[d / Fp8_584::kScaleGroup]);
  for (int i = 0; i < kRopeDim; ++i) {
    const uint8_t* bytes = data + kNopeDim + 2 * i;
    x[kNopeDim + i] = to_float({static_cast<uint16_t>(bytes[0] | (bytes[1] << 8))});
  }
}

MEGAMLA_HD inline void decode_row(Nvfp4_288, const uint8_t* data, const uint8_t* scale, float* x) {
  for (int g = 0; g < Nvfp4_288::kScaleBytes; ++g) {
    const float factor = e4m3_to_float(scale[g]);
    for (int d = g * Nvfp4_288::kScaleGroup; d < (g + 1) * Nvfp4_288::kScaleGroup; ++d) {
      const uint8_t code = static_cast<uint8_t>(d % 2 == 0 ? data[d / 2] & 15 : data[d / 2] >> 4);
      x[d] = e2m1_to_float(code) * factor;
    }
  }
}

// The same with the format as a run-time value.
MEGAMLA_HD inline void encode_row(megamla_kv_format kind, const float* x, uint8_t* data, uint8_t* scale) {
  with_record(kind, [&](auto record) { encode_row(record, x, data, scale); });
}
MEGAMLA_HD inline void decode_row(megamla_kv_format kind, const uint8_t* data, const uint8_t* scale, float* x) {
  with_record(kind, [&](auto record) { decode_row(record, data, scale, x); });
}

}  // namespace megamla::format
