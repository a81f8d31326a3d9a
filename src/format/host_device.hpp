// src/format/ is the only place that knows a byte offset. Everything in it compiles for host and device alike.
#pragma once

#include <bit>

#if defined(__CUDACC__)
#define MEGAMLA_HD __host__ __device__
#else
#define MEGAMLA_HD
#endif

namespace megamla::format {

// std::bit_cast is no device function: nvcc takes it in device code under an experimental flag only.
template <class To, class From>
MEGAMLA_HD constexpr To bit_cast(const From& x) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, x);
}

}  // namespace megamla::format
