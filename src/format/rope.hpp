// The rotation of one interleaved pair (GPT-J): contract sections 3.2 and 5. The fma form is part of the contract,
// since rounded results are stored.
#pragma once

#include <cmath>

#include "format/host_device.hpp"

namespace megamla::format {

struct Pair {
  float x0;
  float x1;
};

namespace detail {
// A product that is rounded before it is used. On the host a product that goes into std::fma cannot be contracted.
MEGAMLA_HD inline float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
}  // namespace detail

// y0 = fma(x0, c, -(x1 s)), y1 = fma(x0, s, x1 c).
MEGAMLA_HD inline Pair rotate(Pair x, float cosine, float sine) {
  return {std::fma(x.x0, cosine, -detail::rounded_product(x.x1, sine)),
          std::fma(x.x0, sine, detail::rounded_product(x.x1, cosine))};
}
MEGAMLA_HD inline Pair rotate_back(Pair x, float cosine, float sine) { return rotate(x, cosine, -sine); }

}  // namespace megamla::format
