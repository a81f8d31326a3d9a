// The error bounds of attention outputs (contract section 16), and an output pair read back as values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {

// The output pair of `tokens` rows, its scales in the packed layout with `columns` columns.
struct OutputPair {
  TensorBuffer data, scale_memory;
  megamla_tensor scale;

  OutputPair(int64_t tokens, int64_t heads, int64_t columns)
      : data(MEGAMLA_F8_E4M3, {tokens, heads / 8, 4096}), scale_memory(MEGAMLA_I32, {heads / 8, 32, columns}) {
    scale = host_tensor(scale_memory.view().data, MEGAMLA_I32, {tokens, heads / 8, 32});
    scale.stride[0] = 1;
    scale.stride[1] = 32 * columns;
    scale.stride[2] = columns;
  }
  uint8_t scale_byte(int64_t t, int64_t head, int64_t dim) const {
    const format::PackedScale place = format::packed_scale(format::o_chunk(head % 8, dim));
    return static_cast<uint8_t>(at<uint32_t>(scale, t, head / 8, place.word) >> place.shift);
  }
  float value(int64_t t, int64_t head, int64_t dim) const {
    const uint8_t code = data.at<uint8_t>(t, head / 8, format::o_chunked_index(head % 8, dim));
    return format::e4m3_to_float(code) * format::ue8m0_to_float(scale_byte(t, head, dim));
  }
  void refill() {
    data.refill();
    scale_memory.refill();
  }
};

struct Bound {
  double absolute, relative, cosine;
};
inline Bound fp8_bound(double scale) { return {1.1e-3 * std::max(1.0, scale), 1.01 / 8, 1e-3}; }
inline Bound bf16_bound(double scale) { return {1.1e-3 * std::max(1.0, scale), 2.01 / 128, 5e-6}; }

// value(i), truth(i) for i < count. `scale`: largest |key value| in use.
template <class Value, class Truth>
void expect_within(const Bound& bound, int64_t count, Value&& value, Truth&& truth) {
  double product = 0, squares = 0, truth_squares = 0;
  int64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = value(i);
    const double y = truth(i);
    const double error = std::fabs(x - y);
    outside += !(error < bound.absolute || error < bound.relative * (std::fabs(y) + 1e-6));
    if (y == 0) outside += x != 0;
    product += x * y;
    squares += x * x + y * y;
    truth_squares += y * y;
  }
  EXPECT_EQ(outside, 0) << "of " << count << " elements";
  if (truth_squares > 1e-12) {
    EXPECT_LT(1 - 2 * product / squares, bound.cosine);
  }
}

inline void expect_lse(const float* value, const float* truth, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(truth[i])) {
      ASSERT_TRUE(std::isnan(value[i])) << "at " << i;
    } else if (std::isinf(truth[i])) {
      ASSERT_EQ(value[i], truth[i]) << "at " << i;
    } else {
      const double size = std::fabs(truth[i]);
      ASSERT_NEAR(value[i], truth[i], std::max(1e-5 * (1 + size), 4.01 / 65536 * (size + 1e-6))) << "at " << i;
    }
  }
}

}  // namespace megamla::test
