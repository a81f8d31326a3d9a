// Comparisons of two implementations' results where the contract leaves room for rounding.
#pragma once

#include <cmath>

#include "format/small_float.hpp"
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

// FP8 values of two results: a rounding apart may be a code apart, beside what the values before the cast may differ
// by.
inline void expect_codes_near(const char* what, double reference, double cpu, double absolute) {
  const bool near = !std::isfinite(reference) || std::fabs(cpu - reference) <= absolute + std::fabs(reference) / 7;
  require(std::isnan(reference) == std::isnan(cpu) && near, "{}: reference {}, cpu {}", what, reference, cpu);
}

// An output pair (contract section 7), dequantised: 32 values to a scale, four scales to a word.
inline void expect_pair_near(const char* what, const megamla_tensor& out, const megamla_tensor& scale,
                             const Snapshot& reference, const Snapshot& cpu, double absolute) {
  const auto value = [&](const Snapshot& results, int64_t t, int64_t g, int64_t i) {
    const auto word = static_cast<uint32_t>(at<int32_t>(results.of(scale), t, g, i / 128));
    const auto exponent = static_cast<uint8_t>(word >> (i / 32 % 4 * 8));
    return static_cast<double>(format::e4m3_to_float(at<uint8_t>(results.of(out), t, g, i))) *
           format::ue8m0_to_float(exponent);
  };
  for (int64_t t = 0; t < out.shape[0]; ++t) {
    for (int64_t g = 0; g < out.shape[1]; ++g) {
      for (int64_t i = 0; i < out.shape[2]; ++i)
        expect_codes_near(what, value(reference, t, g, i), value(cpu, t, g, i), absolute);
    }
  }
}

// U8 tensors, element by element.
inline void expect_same(const char* what, const megamla_tensor& view, const Snapshot& reference, const Snapshot& cpu) {
  if (!present(view)) return;
  for_each_element(view, [&](const uint8_t* element, int64_t) {
    require(*reference.of(element) == *cpu.of(element), "{}: reference {}, cpu {}", what, *reference.of(element),
            *cpu.of(element));
  });
}

}  // namespace megamla::fuzz
