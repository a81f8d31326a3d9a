// Comparisons of two implementations' results where the contract leaves room for rounding.
#pragma once

#include <cmath>

#include "fuzz/finding.hpp"
#include "fuzz/op_call.hpp"

namespace megamla::fuzz {

inline double value_of(megamla_dtype dtype, const uint8_t* element) {
  if (dtype == MEGAMLA_F32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  format::Bf16 value{};
  std::memcpy(&value, element, sizeof(value));
  return to_float(value);
}

// F32 and BF16 tensors, element by element: |cpu - reference| <= absolute + relative * |reference|. Where one is not
// finite both are not.
inline void expect_near(const char* what, const megamla_tensor& view, const Snapshot& reference, const Snapshot& cpu,
                        double absolute, double relative) {
  if (!present(view)) return;
  const auto dtype = static_cast<megamla_dtype>(view.dtype);
  const auto* theirs = data<const uint8_t>(reference.of(view));
  const auto* mine = data<const uint8_t>(cpu.of(view));
  for_each_element(view, [&](const uint8_t* element, int64_t) {
    const int64_t at = element - data<const uint8_t>(view);
    const double y = value_of(dtype, theirs + at);
    const double x = value_of(dtype, mine + at);
    const bool same_kind = std::isnan(x) == std::isnan(y) && std::isinf(x) == std::isinf(y);
    const bool near = !std::isfinite(y) || std::fabs(x - y) <= absolute + relative * std::fabs(y);
    require(same_kind && near, "{}: reference {}, cpu {} at byte {}", what, y, x, at);
  });
}

}  // namespace megamla::fuzz
