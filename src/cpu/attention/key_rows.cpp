#include "cpu/attention/key_rows.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/fetch.hpp"
#include "cpu/record_codec.hpp"
#include "cpu/widen.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;
constexpr int64_t kKeysAhead = 12;  // keys whose cache lines are fetched before they are needed

void copy_bf16(const format::Bf16* values, format::Bf16* out) {
  std::memcpy(out, values, static_cast<size_t>(kDims) * sizeof(*out));
}
void copy_bf16(const format::Bf16* values, float* out) { widen_bf16(values, kDims, out); }

template <class Record>
void decode(Record record, const uint8_t* data, const uint8_t* scale, format::Bf16* out) {
  decode_record(record, data, scale, out);
}
template <class Record>
void decode(Record record, const uint8_t* data, const uint8_t* scale, float* out) {
  format::Bf16 row[kDims];
  decode_record(record, data, scale, row);
  widen_bf16(row, kDims, out);
}

void fetch_key(const KeyRef& key) {
  const megamla_kv_cache& cache = key.source->cache;
  if (!present(cache)) return fetch(key.data, kDims * static_cast<int64_t>(sizeof(format::Bf16)));
  format::with_record(static_cast<megamla_kv_format>(cache.format), [&](auto record) {
    fetch(key.data, decltype(record)::kDataBytes);
    fetch(key.scale, decltype(record)::kScaleBytes);
  });
}

template <class Value>
void load_key(const KeyRef& key, Value* out) {
  const KeySource& source = *key.source;
  if (!present(source.cache)) return copy_bf16(reinterpret_cast<const format::Bf16*>(key.data), out);
  format::with_record(static_cast<megamla_kv_format>(source.cache.format),
                      [&](auto record) { decode(record, key.data, key.scale, out); });
}

template <class Value>
void load_rows(const KeyRef* keys, int64_t count, int64_t padded, Value* tile) {
  fetch_keys(keys, std::min(kKeysAhead, count));
  for (int64_t k = 0; k < count; ++k) {
    if (k + kKeysAhead < count) fetch_key(keys[k + kKeysAhead]);
    load_key(keys[k], tile + k * kKeyStride);
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
  if (multiplier == Multiplier::kGemmF32) return load_rows(keys, count, padded, static_cast<float*>(tile));
  load_rows(keys, count, padded, static_cast<format::Bf16*>(tile));
}

}  // namespace megamla::cpu::attention
