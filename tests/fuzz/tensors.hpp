// Tensors and caches over guarded memory: drawn so that an op accepts them, and questions about any at all.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "format/page.hpp"
#include "fuzz/choices.hpp"
#include "fuzz/guarded_memory.hpp"

namespace megamla::fuzz {

constexpr uint8_t kUnwritten = 0xa5;

enum class Use { kInput, kOutput };

__extension__ using Wide = __int128;  // products of any two 64-bit numbers

// The bytes from t.data to behind the last element; -1 where the view makes no sense or has too many.
inline int64_t bytes_spanned(const megamla_tensor& t) {
  if (t.ndim < 0 || t.ndim > MEGAMLA_MAX_DIMS) return -1;
  if (std::any_of(t.shape, t.shape + t.ndim, [](int64_t extent) { return extent < 0; })) return -1;
  if (t.ndim == 0 || is_empty(t)) return 0;
  Wide last = 0;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.stride[d] < 0) return -1;
    last += static_cast<Wide>(t.shape[d] - 1) * t.stride[d];
    if (last > GuardedMemory::kCapacity) return -1;
  }
  return static_cast<int64_t>(last + 1) * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
}

inline int64_t bytes_spanned(const megamla_kv_cache& c) {
  if (!present(c) || c.num_pages == 0) return 0;
  if (c.format < MEGAMLA_KV_FP8_528 || c.format > MEGAMLA_KV_FP8_584) return -1;
  const Wide page = static_cast<Wide>(c.page_size) * format::record_bytes(static_cast<megamla_kv_format>(c.format));
  const Wide all = (static_cast<Wide>(c.num_pages) - 1) * c.page_stride + page;
  return c.num_pages < 0 || all < 0 || all > GuardedMemory::kCapacity ? -1 : static_cast<int64_t>(all);
}

// True if the view lies in memory that exists: otherwise no library could know that it must not be touched.
template <class View>
bool is_backed(const View& view) {
  const int64_t bytes = bytes_spanned(view);
  return bytes == 0 || (bytes > 0 && GuardedMemory::instance().room_at(view.data) >= bytes);
}

// Two views over one byte, elements between which neither has one counted in.
template <class A, class B>
bool share_memory(const A& a, const B& b) {
  const auto* begin = static_cast<const uint8_t*>(a.data);
  const auto* other = static_cast<const uint8_t*>(b.data);
  const int64_t bytes = bytes_spanned(a);
  const int64_t other_bytes = bytes_spanned(b);
  return bytes > 0 && other_bytes > 0 && begin < other + other_bytes && other < begin + bytes;
}

// Calls f(begin, bytes) for every element.
template <class F>
void for_each_element(const megamla_tensor& t, F&& f) {
  if (!present(t) || is_empty(t)) return;
  const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  int64_t index[MEGAMLA_MAX_DIMS] = {};
  for (;;) {
    int64_t offset = 0;
    for (int d = 0; d < t.ndim; ++d) offset += index[d] * t.stride[d];
    f(data<uint8_t>(t) + offset * size, size);
    int d = t.ndim - 1;
    while (d >= 0 && ++index[d] == t.shape[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

// Calls f(begin, bytes) for the data and the scales of every record.
template <class F>
void for_each_record(const megamla_kv_cache& c, F&& f) {
  if (!present(c)) return;
  const auto kind = static_cast<megamla_kv_format>(c.format);
  for (int64_t slot = 0; slot < format::num_slots(c); ++slot) {
    const auto bytes = format::slot_bytes(c, slot);
    f(bytes.data, format::data_bytes(kind));
    f(bytes.scale, format::scale_bytes(kind));
  }
}

// Draws views; `contiguous_from` as in Validator.
class Views {
 public:
  explicit Views(Choices& choices) : c_(choices), generator_(choices.generator()) {}

  Choices& choices() { return c_; }
  std::minstd_rand& generator() { return generator_; }
  int64_t random(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }
  // Within [-3, 3], near 0 more often.
  float gauss() {
    const auto bits = static_cast<uint32_t>(generator_());  // 31 of them
    return (static_cast<float>((bits & 1023) + (bits >> 10 & 1023) + (bits >> 20 & 1023)) - 1534.5F) / 512;
  }

  // Memory of its own for a view; inputs hold random bytes, outputs kUnwritten.
  void back(megamla_tensor& t, Use use) {
    const int64_t bytes = bytes_spanned(t);
    if (bytes == 0 && c_.coin()) return;  // an empty tensor needs no memory
    t.data = memory(bytes, std::max<int64_t>(megamla_dtype_size(static_cast<megamla_dtype>(t.dtype)), 1), use);
  }
  uint8_t* memory(int64_t bytes, int64_t alignment, Use use) {
    const Block block = GuardedMemory::instance().take(bytes, alignment, kUnwritten);
    if (use == Use::kInput) randomise(block.begin, block.bytes);
    return block.begin;
  }
  void randomise(uint8_t* begin, int64_t bytes) {
    std::generate_n(begin, bytes, [&] { return static_cast<uint8_t>(generator_() >> 8); });
  }

  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, int contiguous_from, Use use) {
    megamla_tensor t = host_tensor(nullptr, dtype, shape);
    for (int d = std::min(contiguous_from, t.ndim) - 1; d >= 0; --d) {
      const int64_t below = d + 1 < t.ndim ? t.stride[d + 1] * std::max<int64_t>(t.shape[d + 1], 1) : 1;
      t.stride[d] = below + c_.one_of<int64_t>({0, 0, 0, 1, 8, 24});
      if (use == Use::kInput && c_.rarely()) t.stride[d] = 0;  // one row, read again and again
    }
    back(t, use);
    return t;
  }

  // Floats of a few units.
  megamla_tensor values(megamla_dtype dtype, std::initializer_list<int64_t> shape, int contiguous_from) {
    const megamla_tensor t = tensor(dtype, shape, contiguous_from, Use::kInput);
    for_each_element(t, [&](uint8_t* element, int64_t) {
      if (dtype == MEGAMLA_F32) {
        const float value = gauss();
        std::memcpy(element, &value, sizeof(value));
      } else {
        const format::Bf16 value = format::to_bf16(gauss());
        std::memcpy(element, &value, sizeof(value));
      }
    });
    return t;
  }
  // Integers of [low, high], now and then any at all.
  megamla_tensor integers(megamla_dtype dtype, std::initializer_list<int64_t> shape, int contiguous_from, int64_t low,
                          int64_t high) {
    const megamla_tensor t = tensor(dtype, shape, contiguous_from, Use::kInput);
    const bool wild = c_.coin();
    for_each_element(t, [&](uint8_t* element, int64_t size) {
      if (wild && random(0, 7) == 0) return;  // random bytes
      const int64_t value = random(low, high);
      std::memcpy(element, &value, static_cast<size_t>(size));  // little endian
    });
    return t;
  }

  // Pages within a pool: other bytes may lie between them.
  megamla_kv_cache cache(megamla_kv_format kind, Use use) {
    megamla_kv_cache c{};
    c.format = kind;
    c.cuda_device = -1;
    c.layout = kind != MEGAMLA_KV_FP8_584 && c_.coin() ? MEGAMLA_PAGE_INTERLEAVED : MEGAMLA_PAGE_PLANAR;
    c.page_size = c_.one_of<int64_t>({1, 2, 3, 4, 16, 5});
    c.num_pages = c_.in(0, 5);
    c.page_stride = format::round_up(c.page_size * format::record_bytes(kind), 16) + c_.one_of<int64_t>({0, 0, 16, 64});
    c.data = memory(bytes_spanned(c), 16, Use::kInput);
    if (use == Use::kOutput) return c;
    for (int64_t slot = 0; slot < format::num_slots(c); ++slot) {
      float row[format::kHeadDim];
      for (float& value : row) value = gauss();
      const auto bytes = format::slot_bytes(c, slot);
      format::encode_row(kind, row, bytes.data, bytes.scale);
    }
    return c;
  }

 private:
  Choices& c_;
  std::minstd_rand generator_;
};

}  // namespace megamla::fuzz
