// A call of block_scaled_linear for tests, with its sums in double computed from the stored codes.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "format/chunked.hpp"
#include "format/small_float.hpp"
#include "megamla/block_scaled_linear.h"
#include "support/tensor_buffer.hpp"

namespace megamla::test {

// Every kind that a call may have.
inline constexpr megamla_linear_input kLinearInputs[] = {MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_IN_FP8_PAIR,
                                                         MEGAMLA_LINEAR_IN_MXFP8};
inline constexpr megamla_linear_weight kLinearWeights[] = {MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_WEIGHT_BLOCK_32,
                                                           MEGAMLA_LINEAR_WEIGHT_ROW_32};
inline constexpr megamla_linear_output kLinearOutputs[] = {MEGAMLA_LINEAR_OUT_BF16, MEGAMLA_LINEAR_OUT_F32,
                                                           MEGAMLA_LINEAR_OUT_MXFP8};

struct LinearShape {
  int64_t tokens, groups, in, out;
  megamla_linear_input input;
  megamla_linear_weight weight;
  megamla_linear_output output;
  int64_t padding = 0;  // elements between rows of x and y
};

inline std::string name_of(const LinearShape& s) {
  return fmt::format("T {} G {} in {} out {} input {} weight {} output {} padding {}", s.tokens, s.groups, s.in, s.out,
                     static_cast<int>(s.input), static_cast<int>(s.weight), static_cast<int>(s.output), s.padding);
}

inline megamla_dtype dtype_of(megamla_linear_output output) {
  return output == MEGAMLA_LINEAR_OUT_F32    ? MEGAMLA_F32
         : output == MEGAMLA_LINEAR_OUT_BF16 ? MEGAMLA_BF16
                                             : MEGAMLA_F8_E4M3;
}

// A call with random operands. Scales span eight powers of two; codes are any but NaN.
class LinearProblem {
 public:
  LinearProblem(const LinearShape& s, uint64_t seed)
      : s_(s),
        x(s.input == MEGAMLA_LINEAR_IN_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {s.tokens, s.groups, s.in},
          s.input == MEGAMLA_LINEAR_IN_MXFP8 ? 0 : s.padding),
        pair_scale(MEGAMLA_I32, {s.groups, s.in / 128, format::round_up(s.tokens, 4) + 4}),
        flat_scale(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.in / 32)}),
        weight(s.weight == MEGAMLA_LINEAR_WEIGHT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {s.groups, s.out, s.in}),
        weight_scale(MEGAMLA_F8_E8M0,
                     {s.groups, s.weight == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? s.out / 32 : s.out, s.in / 32}),
        y(dtype_of(s.output), {s.tokens, s.groups, s.out}, s.output == MEGAMLA_LINEAR_OUT_MXFP8 ? 0 : s.padding),
        y_scale(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.groups * s.out / 32)}) {
    std::mt19937_64 random(seed);
    fill_values(x, random);
    fill_values(weight, random);
    fill_scales(pair_scale, random);
    fill_scales(flat_scale, random);
    fill_scales(weight_scale, random);
    megamla_block_scaled_linear_init(&params);
    params.input = s.input;
    params.weight_kind = s.weight;
    params.output = s.output;
    params.x = x;
    params.weight = weight;
    params.y = y;
    if (s.input == MEGAMLA_LINEAR_IN_FP8_PAIR) params.x_scale = pair_view();
    if (s.input == MEGAMLA_LINEAR_IN_MXFP8) {
      params.x_scale = flat_scale;
      params.x = host_tensor(x.view().data, MEGAMLA_F8_E4M3, {s.tokens, s.in});
    }
    if (s.weight != MEGAMLA_LINEAR_WEIGHT_BF16) params.weight_scale = weight_scale;
    if (s.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      params.y = host_tensor(y.view().data, MEGAMLA_F8_E4M3, {s.tokens, s.groups * s.out});
      params.y_scale = y_scale;
    }
  }

  double x_value(int64_t t, int64_t g, int64_t i) const {
    if (s_.input == MEGAMLA_LINEAR_IN_BF16) return format::to_float(x.at<format::Bf16>(t, g, i));
    uint8_t scale = flat_scale.as<uint8_t>()[format::f8_128x4_index(s_.in / 32, t, i / 32)];
    if (s_.input == MEGAMLA_LINEAR_IN_FP8_PAIR) {
      // Byte k % 4 of word k / 4, little endian.
      std::memcpy(&scale, reinterpret_cast<const char*>(&pair_scale.at<int32_t>(g, i / 128, t)) + i / 32 % 4, 1);
    }
    return static_cast<double>(format::e4m3_to_float(x.at<uint8_t>(t, g, i))) * format::ue8m0_to_float(scale);
  }
  double weight_value(int64_t g, int64_t n, int64_t i) const {
    if (s_.weight == MEGAMLA_LINEAR_WEIGHT_BF16) return format::to_float(weight.at<format::Bf16>(g, n, i));
    const uint8_t scale = weight_scale.at<uint8_t>(g, s_.weight == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? n / 32 : n, i / 32);
    return static_cast<double>(format::e4m3_to_float(weight.at<uint8_t>(g, n, i))) * format::ue8m0_to_float(scale);
  }

  // The sum, and the sum of the magnitudes: what fp32 accumulation may be off by is a small part of it.
  void expected(int64_t t, int64_t g, int64_t n, double* sum, double* magnitude) const {
    *sum = *magnitude = 0;
    for (int64_t i = 0; i < s_.in; ++i) {
      const double product = x_value(t, g, i) * weight_value(g, n, i);
      *sum += product;
      *magnitude += std::abs(product);
    }
  }

  // Result (t, g, n), dequantised.
  double result(int64_t t, int64_t g, int64_t n) const {
    if (s_.output == MEGAMLA_LINEAR_OUT_F32) return y.at<float>(t, g, n);
    if (s_.output == MEGAMLA_LINEAR_OUT_BF16) return format::to_float(y.at<format::Bf16>(t, g, n));
    return static_cast<double>(format::e4m3_to_float(y.at<uint8_t>(t, g, n))) *
           format::ue8m0_to_float(scale_byte(t, g * s_.out + n));
  }
  uint8_t scale_byte(int64_t t, int64_t column) const {
    return y_scale.as<uint8_t>()[format::f8_128x4_index(s_.groups * s_.out / 32, t, column / 32)];
  }

  megamla_limits limits(int threads) const {
    megamla_limits limits = MEGAMLA_LIMITS_INIT;
    limits.tokens = s_.tokens;
    limits.groups = s_.groups;
    limits.in_features = s_.in;
    limits.out_features = s_.out;
    limits.num_threads = threads;
    return limits;
  }
  int64_t workspace_bytes(megamla_device device, int threads) const {
    const megamla_limits limits = this->limits(threads);
    int64_t bytes = -1;
    EXPECT_EQ(megamla_block_scaled_linear_workspace_size(&limits, device, &bytes), MEGAMLA_OK);
    return bytes;
  }

  void run(megamla_device device, int threads = 2) {
    y.refill();
    y_scale.refill();
    Workspace workspace(workspace_bytes(device, threads));
    megamla_exec exec = exec_on(device, threads);
    workspace.attach(exec);
    ASSERT_EQ(megamla_block_scaled_linear(&params, &exec), MEGAMLA_OK) << megamla_last_error();
    EXPECT_TRUE(workspace.guards_intact());
    EXPECT_TRUE(y.guards_intact());
    EXPECT_TRUE(y_scale.guards_intact());
  }

 private:
  LinearShape s_;

  megamla_tensor pair_view() const {
    megamla_tensor t = pair_scale;
    const int64_t a = t.shape[2];
    const int64_t shape[3] = {s_.tokens, s_.groups, s_.in / 128};
    const int64_t stride[3] = {1, s_.in / 128 * a, a};
    std::copy_n(shape, 3, t.shape);
    std::copy_n(stride, 3, t.stride);
    return t;
  }
  static void fill_values(const TensorBuffer& t, std::mt19937_64& random) {
    const size_t count = t.view().shape[0] == 0 ? 0 : static_cast<size_t>(t.view().shape[0] * t.view().stride[0]);
    for (size_t i = 0; i < count; ++i) {
      if (t.view().dtype == MEGAMLA_BF16) {
        // Any sign and mantissa, exponents of -4 to 3.
        t.as<format::Bf16>()[i].bits = static_cast<uint16_t>((random() & 0x807fU) + ((123U + random() % 8U) << 7U));
      } else {
        const auto code = static_cast<uint8_t>(random());
        t.as<uint8_t>()[i] = (code & 0x7fU) == 0x7fU ? static_cast<uint8_t>(code & 0x87U) : code;
      }
    }
  }
  static void fill_scales(TensorBuffer& t, std::mt19937_64& random) {
    std::vector<uint8_t> bytes = t.values<uint8_t>();
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(116 + random() % 8);
    t.assign(bytes);
  }

 public:
  TensorBuffer x, pair_scale, flat_scale, weight, weight_scale, y, y_scale;
  megamla_block_scaled_linear_params params;
};

}  // namespace megamla::test
