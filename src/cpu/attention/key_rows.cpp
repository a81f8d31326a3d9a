#include "cpu/attention/key_rows.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/attention/key_rows_avx512.hpp"
#include "cpu/simd.hpp"
#include "cpu/widen.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;
constexpr int64_t kKeysAhead = 12;  // keys whose cache lines are fetched before they are needed
constexpr int64_t kCacheLine = 64;

inline void store_value(float value, format::Bf16* out) {
  out->bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // exact: 5 significant bits
}
inline void store_value(float value, float* out) { *out = value; }

// e2m1 * scale without a branch: a normal code's exponent and mantissa move to fp32's place; a subnormal one (0 or 1)
// is read one exponent higher, as 1 + m/2, and loses the 1 again.
inline float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7U;
  const uint32_t subnormal = magnitude < 2 ? 1U : 0U;
  const float raised = std::bit_cast<float>((magnitude << 22) + ((126U + subnormal) << 23));
  const float value = raised - (subnormal != 0 ? 1.0F : 0.0F);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | ((code & 8U) << 28));
}

template <class Value>
inline __attribute__((always_inline)) void widen_e2m1(const uint8_t* codes, const float* scales, Value* out) {
  constexpr int64_t kPairs = format::Nvfp4_288::kScaleGroup / 2;
  for (int64_t g = 0; g < format::Nvfp4_288::kScaleBytes; ++g) {
    for (int64_t i = g * kPairs; i < (g + 1) * kPairs; ++i) {
      store_value(e2m1_value(codes[i] & 15U) * scales[g], out + 2 * i);
      store_value(e2m1_value(codes[i] >> 4U) * scales[g], out + 2 * i + 1);
    }
  }
}
MEGAMLA_SIMD_CLONES void widen_nvfp4(const uint8_t* codes, const float* scales, format::Bf16* out) {
  widen_e2m1(codes, scales, out);
}
MEGAMLA_SIMD_CLONES void widen_nvfp4(const uint8_t* codes, const float* scales, float* out) {
  widen_e2m1(codes, scales, out);
}

void copy_bf16(const format::Bf16* values, int64_t count, format::Bf16* out) {
  std::memcpy(out, values, static_cast<size_t>(count) * sizeof(*out));
}
void copy_bf16(const format::Bf16* values, int64_t count, float* out) { widen_bf16(values, count, out); }

template <class Value>
void widen_row(format::Fp8_528, const uint8_t* data, const uint8_t* scale, Value* out) {
  float scales[format::Fp8_528::kScaleBytes];
  for (int g = 0; g < format::Fp8_528::kScaleBytes; ++g) scales[g] = format::ue8m0_to_float(scale[g]);
  widen_e4m3(data, scales, kDims, out);
}

template <class Value>
void widen_row(format::Fp8_584, const uint8_t* data, const uint8_t* scale, Value* out) {
  float scales[2 * format::Fp8_584::kScaleGroups];  // widen_e4m3 takes one per 32 dims
  for (int g = 0; g < format::Fp8_584::kScaleGroups; ++g) {
    scales[2 * g] = scales[2 * g + 1] = format::ue8m0_to_float(scale[g]);
  }
  widen_e4m3(data, scales, format::kNopeDim, out);
  format::Bf16 rope[format::kRopeDim];
  std::memcpy(rope, data + format::kNopeDim, sizeof(rope));
  copy_bf16(rope, format::kRopeDim, out + format::kNopeDim);
}

template <class Value>
void widen_row(format::Nvfp4_288, const uint8_t* data, const uint8_t* scale, Value* out) {
  float scales[format::Nvfp4_288::kScaleBytes];
  for (int g = 0; g < format::Nvfp4_288::kScaleBytes; ++g) scales[g] = format::e4m3_to_float(scale[g]);
  widen_nvfp4(data, scales, out);
}

void fetch(const uint8_t* begin, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(begin + i);
}

void fetch_key(const KeyRef& key) {
  if (!present(key.source->cache)) {
    const auto* row = &at<const format::Bf16>(key.source->rows, key.slot);
    return fetch(reinterpret_cast<const uint8_t*>(row), kDims * static_cast<int64_t>(sizeof(*row)));
  }
  const auto kind = static_cast<megamla_kv_format>(key.source->cache.format);
  const auto bytes = format::slot_bytes(key.source->cache, key.slot);
  fetch(bytes.data, format::data_bytes(kind));
  fetch(bytes.scale, format::scale_bytes(kind));
}

template <class Value>
void load_key(const KeyRef& key, bool avx512, Value* out) {
  const KeySource& source = *key.source;
  if (!present(source.cache)) return copy_bf16(&at<const format::Bf16>(source.rows, key.slot), kDims, out);
  const auto bytes = format::slot_bytes(source.cache, key.slot);
  format::with_record(static_cast<megamla_kv_format>(source.cache.format), [&](auto record) {
    if constexpr (sizeof(Value) == sizeof(format::Bf16)) {
      if (avx512) return decode_row_avx512(record, bytes.data, bytes.scale, out);
    }
    widen_row(record, bytes.data, bytes.scale, out);
  });
}

template <class Value>
void load_rows(const KeyRef* keys, int64_t count, int64_t padded, bool avx512, Value* tile) {
  fetch_keys(keys, std::min(kKeysAhead, count));
  for (int64_t k = 0; k < count; ++k) {
    if (k + kKeysAhead < count) fetch_key(keys[k + kKeysAhead]);
    load_key(keys[k], avx512, tile + k * kKeyStride);
  }
  for (int64_t k = count; k < padded; ++k) {
    std::memset(static_cast<void*>(tile + k * kKeyStride), 0, static_cast<size_t>(kDims) * sizeof(Value));
  }
}

}  // namespace

void fetch_keys(const KeyRef* keys, int64_t count) {
  for (int64_t k = 0; k < count; ++k) fetch_key(keys[k]);
}

void load_keys(Multiplier multiplier, const KeyRef* keys, int64_t count, int64_t padded, void* tile) {
  if (multiplier == Multiplier::kGemmF32) return load_rows(keys, count, padded, false, static_cast<float*>(tile));
  load_rows(keys, count, padded, multiplier == Multiplier::kAvx512Bf16, static_cast<format::Bf16*>(tile));
}

}  // namespace megamla::cpu::attention
