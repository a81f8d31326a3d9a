#include "core/validate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "format/kv_record.hpp"

namespace megamla {
namespace {

__extension__ using Wide = __int128;  // sums of products of 64-bit extents and strides

std::string list(const int64_t* values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", values[i]);
  return text + "]";
}

std::string expected_text(std::initializer_list<megamla_dtype> dtypes, std::initializer_list<int64_t> shape) {
  std::string text;
  for (megamla_dtype dtype : dtypes) text += fmt::format("{}{}", text.empty() ? "" : " or ", megamla_dtype_name(dtype));
  text += " [";
  bool first = true;
  for (int64_t extent : shape) {
    text += first ? "" : ", ";
    text += extent == Validator::kAny ? "*" : fmt::format("{}", extent);
    first = false;
  }
  return text + "]";
}

std::string expected_text(std::initializer_list<megamla_kv_format> formats) {
  std::string text;
  for (megamla_kv_format f : formats) text += fmt::format("{}{}", text.empty() ? "format " : " or ", format::name(f));
  return text;
}

// A number that is none of the enumeration's is never turned into it.
std::string format_name(int32_t number) {
  const bool known = number >= MEGAMLA_KV_NONE && number <= MEGAMLA_KV_FP8_584;
  return known ? format::name(static_cast<megamla_kv_format>(number)) : fmt::format("format {}", number);
}

// One past the last element's offset, in elements; -1 if 64 bits (in bytes) do not hold it.
int64_t extent_elements(const megamla_tensor& t) {
  Wide last = 0;
  for (int d = 0; d < t.ndim; ++d) last += static_cast<Wide>(t.shape[d] - 1) * t.stride[d];
  const Wide limit = std::numeric_limits<int64_t>::max() / 8 - 1;
  return last > limit ? -1 : static_cast<int64_t>(last + 1);
}

// No two elements share an address: true for every view whose dims, ordered by stride, each step over the one below.
// Strides of dims of extent 1 are never taken.
bool self_overlaps(const megamla_tensor& t) {
  int order[MEGAMLA_MAX_DIMS];
  int count = 0;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] <= 1) continue;
    int at = count++;
    for (; at > 0 && t.stride[order[at - 1]] > t.stride[d]; --at) order[at] = order[at - 1];
    order[at] = d;
  }
  Wide reach = 1;
  for (int i = 0; i < count; ++i) {
    if (t.stride[order[i]] < reach) return true;
    reach += static_cast<Wide>(t.shape[order[i]] - 1) * t.stride[order[i]];
  }
  return false;
}

struct ByteRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

ByteRange byte_range(const megamla_tensor& t) {
  if (!present(t) || is_empty(t) || t.data == nullptr) return {};
  const auto begin = reinterpret_cast<uintptr_t>(t.data);
  const int64_t bytes = extent_elements(t) * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  return {begin, begin + static_cast<uintptr_t>(bytes)};
}

ByteRange byte_range(const megamla_kv_cache& c) {
  if (!present(c) || c.num_pages == 0 || c.data == nullptr) return {};
  const auto begin = reinterpret_cast<uintptr_t>(c.data);
  const int64_t page = c.page_size * format::record_bytes(static_cast<megamla_kv_format>(c.format));
  return {begin, begin + static_cast<uintptr_t>((c.num_pages - 1) * c.page_stride + page)};
}

bool meet(ByteRange a, ByteRange b) { return a.begin < b.end && b.begin < a.end; }

std::string memory_name(int32_t cuda_device) {
  return cuda_device < 0 ? "host memory" : fmt::format("memory of CUDA device {}", cuda_device);
}

}  // namespace

std::string describe(const megamla_tensor& t) {
  if (!present(t)) return "nothing";
  return fmt::format("{} {}", megamla_dtype_name(static_cast<megamla_dtype>(t.dtype)),
                     list(t.shape, std::clamp(t.ndim, 0, MEGAMLA_MAX_DIMS)));
}

void Validator::refuse(const char* name, const std::string& expected, const std::string& got) {
  status_ = invalid_argument("{}: {}: expected {}, got {}", op_, name, expected, got);
}

void Validator::in_memory(const char* name, int32_t device) {
  require(
      device < 0 ? cuda_device_ < 0 : device == cuda_device_, name, [&] { return memory_name(cuda_device_); },
      [&] { return memory_name(device); });
}

Validator& Validator::tensor(const char* name, const megamla_tensor& t, std::initializer_list<megamla_dtype> dtypes,
                             std::initializer_list<int64_t> shape, int contiguous_from, Access access) {
  if (!ok()) return *this;
  bool dtype_fits = false;
  for (megamla_dtype dtype : dtypes) dtype_fits |= t.dtype == dtype;
  bool shape_fits = t.ndim == static_cast<int>(shape.size());
  for (int d = 0; shape_fits && d < t.ndim; ++d) {
    const int64_t want = shape.begin()[d];
    shape_fits = t.shape[d] >= 0 && (want == kAny || t.shape[d] == want);
  }
  require(
      dtype_fits && shape_fits, name, [&] { return expected_text(dtypes, shape); }, t);
  in_memory(name, t.cuda_device);
  if (!ok() || is_empty(t)) return *this;
  const auto strides = [&] { return list(t.stride, t.ndim); };
  require(t.data != nullptr, name, "a non-null pointer", "NULL");
  int64_t dense = 1;
  for (int d = t.ndim - 1; ok() && d >= 0; --d) {
    require(t.stride[d] >= 0, name, "non-negative strides", strides);
    if (d >= contiguous_from && t.shape[d] > 1) {
      require(
          t.stride[d] == dense, name, [&] { return fmt::format("stride {} in dimension {}", dense, d); }, strides);
    }
    if (__builtin_mul_overflow(dense, t.shape[d], &dense)) dense = std::numeric_limits<int64_t>::max();
  }
  if (!ok()) return *this;
  require(extent_elements(t) >= 0, name, "an extent below 2^60 elements", strides);
  if (!ok()) return *this;
  addressable(name, t.data, extent_elements(t) * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype)));
  aligned(name, t.data, megamla_dtype_size(static_cast<megamla_dtype>(t.dtype)));
  if (access == Access::kWrite) {
    require(!self_overlaps(t), name, "an output whose elements do not overlap", [&] { return "strides " + strides(); });
  }
  return *this;
}

Validator& Validator::optional_tensor(const char* name, const megamla_tensor& t,
                                      std::initializer_list<megamla_dtype> dtypes, std::initializer_list<int64_t> shape,
                                      int contiguous_from, Access access) {
  return present(t) ? tensor(name, t, dtypes, shape, contiguous_from, access) : *this;
}

Validator& Validator::absent(const char* name, const megamla_tensor& t, const char* why) {
  return require(
      !present(t), name, [&] { return fmt::format("nothing ({})", why); }, t);
}

Validator& Validator::cache(const char* name, const megamla_kv_cache& c,
                            std::initializer_list<megamla_kv_format> formats) {
  if (!ok()) return *this;
  const bool fits = std::find(formats.begin(), formats.end(), c.format) != formats.end();
  require(
      fits, name, [&] { return expected_text(formats); }, [&] { return format_name(c.format); });
  if (!ok()) return *this;
  const auto kind = static_cast<megamla_kv_format>(c.format);
  require(c.layout == MEGAMLA_PAGE_PLANAR || (c.layout == MEGAMLA_PAGE_INTERLEAVED && kind != MEGAMLA_KV_FP8_584), name,
          kind == MEGAMLA_KV_FP8_584 ? "the planar page layout (fp8_584 has no other)"
                                     : "page layout planar (0) or interleaved (1)",
          [&] { return fmt::format("layout {}", c.layout); });
  in_memory(name, c.cuda_device);
  require(c.num_pages >= 0, name, "num_pages >= 0", c.num_pages);
  require(c.page_size >= 1 && c.page_size < (int64_t{1} << 31), name, "page_size in [1, 2^31)", c.page_size);
  if (!ok() || c.num_pages == 0) return *this;
  // The divisions keep the products below in 64 bits.
  require(c.num_pages <= ((int64_t{1} << 31) - 1) / c.page_size, name, "at most 2^31 - 1 slots (slot ids are int32)",
          [&] { return fmt::format("{} pages of {}", c.num_pages, c.page_size); });
  require(c.data != nullptr, name, "a non-null pointer", "NULL");
  aligned(name, c.data, 16);
  const int64_t page_bytes = c.page_size * format::record_bytes(kind);
  const auto page_text = [&] {
    return fmt::format("a page_stride that is a multiple of 16 and at least {} ({} records of {} bytes)", page_bytes,
                       c.page_size, format::record_bytes(kind));
  };
  require(c.page_stride >= page_bytes && c.page_stride % 16 == 0, name, page_text, c.page_stride);
  require(c.page_stride <= (std::numeric_limits<int64_t>::max() >> 1) / c.num_pages, name, "an extent below 2^62 bytes",
          [&] { return fmt::format("{} pages of {} bytes", c.num_pages, c.page_stride); });
  return ok() ? addressable(name, c.data, (c.num_pages - 1) * c.page_stride + page_bytes) : *this;
}

Validator& Validator::output_pair(const char* name, const megamla_tensor& out, const char* scale_name,
                                  const megamla_tensor& scale, int64_t tokens, int64_t groups, Access access) {
  tensor(name, out, {MEGAMLA_F8_E4M3}, {tokens, groups, 4096}, 0, access);
  tensor(scale_name, scale, {MEGAMLA_I32}, {tokens, groups, 32}, 3, access);
  if (!ok() || tokens == 0 || groups == 0) return *this;
  const int64_t a = scale.stride[2];
  const bool packed =
      (tokens == 1 || scale.stride[0] == 1) && a >= tokens && a % 4 == 0 && (groups == 1 || scale.stride[1] == 32 * a);
  const auto expected = [&] { return fmt::format("strides (1, 32*A, A) with A >= {} and A a multiple of 4", tokens); };
  return require(packed, scale_name, expected, [&] { return list(scale.stride, 3); });
}

Validator& Validator::no_overlap(const char* name_a, const megamla_tensor& a, const char* name_b,
                                 const megamla_tensor& b) {
  if (!ok()) return *this;
  return require(
      !meet(byte_range(a), byte_range(b)), name_a, [&] { return fmt::format("memory apart from {}", name_b); },
      "overlapping memory");
}

Validator& Validator::no_overlap(const char* name_a, const megamla_tensor& a, const char* name_b,
                                 const megamla_kv_cache& b) {
  if (!ok()) return *this;
  return require(
      !meet(byte_range(a), byte_range(b)), name_a, [&] { return fmt::format("memory apart from {}", name_b); },
      "overlapping memory");
}

Validator& Validator::range(const char* name, int64_t value, int64_t low, int64_t high) {
  return require(
      value >= low && value <= high, name, [&] { return fmt::format("a value in [{}, {}]", low, high); }, value);
}

Validator& Validator::multiple_of(const char* name, int64_t value, int64_t factor) {
  return require(
      value % factor == 0, name, [&] { return fmt::format("a multiple of {}", factor); }, value);
}

Validator& Validator::aligned(const char* name, const void* pointer, int64_t alignment) {
  return require(
      reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0, name,
      [&] { return fmt::format("an address that is a multiple of {}", alignment); },
      [&] { return fmt::format("{}", pointer); });
}

Validator& Validator::addressable(const char* name, const void* begin, int64_t bytes) {
  uintptr_t end = 0;
  return require(!__builtin_add_overflow(reinterpret_cast<uintptr_t>(begin), static_cast<uintptr_t>(bytes), &end), name,
                 "memory that ends below 2^64", [&] { return fmt::format("{} bytes from {}", bytes, begin); });
}

Validator& Validator::finite(const char* name, double value) {
  return require(std::isfinite(value), name, "a finite value", value);
}

}  // namespace megamla
