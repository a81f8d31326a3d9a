// Division of numbers below 2^31 by a number that many of them share: a product and a shift instead of a division.
#pragma once

#include <bit>
#include <cstdint>

#include "format/host_device.hpp"

namespace megamla::plan {

// `value` in [1, 2^31).
struct Divisor {
  uint32_t value = 1;
  uint32_t multiplier = uint32_t{1} << 31;
  int shift = 31;

  constexpr Divisor() = default;
  // With 2^(k-1) < value <= 2^k, s = 31 + k and m = ceil(2^s / value), which is below 2^32: m * value is less than
  // value <= 2^k above 2^s, so n * m / 2^s is less than n / 2^31 / value above n / value; for n < 2^31 that reaches no
  // further integer.
  constexpr explicit Divisor(int64_t v)
      : value(static_cast<uint32_t>(v)), shift(31 + static_cast<int>(std::bit_width(value - 1))) {
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + value - 1) / value);
  }

  // n / value, n < 2^31.
  MEGAMLA_HD constexpr uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>((uint64_t{n} * multiplier) >> shift);
  }
};

}  // namespace megamla::plan
