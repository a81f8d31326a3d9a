// Argument checks with one voice: "<op>: <argument>: expected ..., got ...". The first failure wins, later checks are
// skipped, so an op's validation reads as a list of facts. Nothing is read through a data pointer here.
#pragma once

#include <initializer_list>
#include <string>
#include <type_traits>

#include "core/status.hpp"
#include "core/tensor.hpp"

namespace megamla {

std::string describe(const megamla_tensor& t);  // "BF16 [3, 64, 512]"

class Validator {
 public:
  // `cuda_device`: the memory that every tensor must be in, -1 = host.
  Validator(const char* op, int32_t cuda_device) : op_(op), cuda_device_(cuda_device) {}

  static constexpr int64_t kAny = -1;  // in a shape: any extent
  enum class Access { kRead, kWrite };

  // A tensor that must be there: dtype one of `dtypes`, `shape` (kAny = free), dims from `contiguous_from` on
  // C-contiguous, non-negative strides, non-null data unless empty, aligned to its element; an output's rows may not
  // overlap each other.
  Validator& tensor(const char* name, const megamla_tensor& t, std::initializer_list<megamla_dtype> dtypes,
                    std::initializer_list<int64_t> shape, int contiguous_from, Access access = Access::kRead);
  // The same, or absent.
  Validator& optional_tensor(const char* name, const megamla_tensor& t, std::initializer_list<megamla_dtype> dtypes,
                             std::initializer_list<int64_t> shape, int contiguous_from, Access access = Access::kRead);
  Validator& absent(const char* name, const megamla_tensor& t, const char* why);
  // A cache that must be there: known format, layout that the format has, stride, page size, alignment, extent below
  // 2^63, slots below 2^31.
  Validator& cache(const char* name, const megamla_kv_cache& c, std::initializer_list<megamla_kv_format> formats);
  // An output pair: data F8_E4M3 [T, G, 4096] contiguous, scale I32 [T, G, 32] with strides (1, 32*A, A), A >= T, A % 4
  // == 0, T x G.
  Validator& output_pair(const char* name, const megamla_tensor& out, const char* scale_name,
                         const megamla_tensor& scale, int64_t tokens, int64_t groups, Access access);
  // Byte ranges may not meet. For an output against an input or another output.
  Validator& no_overlap(const char* name_a, const megamla_tensor& a, const char* name_b, const megamla_tensor& b);
  Validator& no_overlap(const char* name_a, const megamla_tensor& a, const char* name_b, const megamla_kv_cache& b);
  Validator& range(const char* name, int64_t value, int64_t low, int64_t high);  // inclusive
  Validator& multiple_of(const char* name, int64_t value, int64_t factor);
  Validator& aligned(const char* name, const void* pointer, int64_t alignment);
  // `bytes` bytes from `begin` do not reach past the end of the address space.
  Validator& addressable(const char* name, const void* begin, int64_t bytes);
  Validator& finite(const char* name, double value);
  // Any other fact: refused with "<op>: <name>: expected <expected>, got <got>". Each of the two is a string, a number,
  // a tensor to be described, or a function that makes a string: where the fact holds, no text is made.
  template <class Expected, class Got>
  Validator& require(bool holds, const char* name, const Expected& expected, const Got& got) {
    if (!holds && ok()) refuse(name, text_of(expected), text_of(got));
    return *this;
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  template <class T>
  static std::string text_of(const T& value) {
    if constexpr (std::is_invocable_v<const T&>) {
      return value();
    } else if constexpr (std::is_arithmetic_v<T>) {
      return fmt::format("{}", value);
    } else if constexpr (std::is_same_v<T, megamla_tensor>) {
      return describe(value);
    } else {
      return value;
    }
  }
  void in_memory(const char* name, int32_t device);
  void refuse(const char* name, const std::string& expected, const std::string& got);

  const char* op_;
  int32_t cuda_device_;
  Status status_;
};

}  // namespace megamla
