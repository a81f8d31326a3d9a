// Rounding to a small float by exact search in double precision: independent of the codecs under test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace megamla::test {

// The finite magnitudes of a format in code order, and the sign's bit.
struct SmallFloat {
  std::vector<double> magnitudes;
  uint8_t sign;

  // Nearest magnitude, at a midpoint the even code; saturates; the sign of zero is kept.
  uint8_t nearest(double x) const {
    const double a = std::fabs(x);
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), a);
    auto code = static_cast<size_t>(above - magnitudes.begin());
    if (above == magnitudes.end()) {
      --code;
    } else if (code > 0) {
      const double down = a - magnitudes[code - 1];
      const double up = magnitudes[code] - a;
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
    return static_cast<uint8_t>(code | (std::signbit(x) ? sign : 0U));
  }

  double value(uint8_t code) const {
    const double magnitude = magnitudes[static_cast<size_t>(code & (sign - 1))];
    return (code & sign) != 0 ? -magnitude : magnitude;
  }
};

// e4m3fn: codes 0x00..0x7e.
inline SmallFloat e4m3() {
  SmallFloat f{{}, 0x80};
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code / 8;
    f.magnitudes.push_back(exponent == 0 ? std::ldexp(code % 8, -9) : std::ldexp(8 + code % 8, exponent - 10));
  }
  return f;
}

inline SmallFloat e2m1() { return {{0, 0.5, 1, 1.5, 2, 3, 4, 6}, 8}; }

// The smallest e >= -127 with 448 * 2^e >= amax: both sides are exact.
inline int smallest_exponent(float amax) {
  int e = -127;
  while (std::ldexp(448.0, e) < amax) ++e;
  return e;
}

}  // namespace megamla::test
