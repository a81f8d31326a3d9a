// output_cast: exponents by search, codes by the codec, layouts by the contract's formulas.
#include "megamla/output_cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "format/small_float.hpp"
#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

// Values of every size, many of them maxima of 448 * 2^k and its neighbours.
void fill_hard(const TensorBuffer& buffer, int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random() % 40) - 20;
    float x = normal(random) * std::ldexp(1.0F, i / 32 % 7 == 0 ? -30 : -4);
    if (random() % 24 == 0) x = std::ldexp(448.0F, exponent);
    if (random() % 24 == 0) x = std::nextafter(std::ldexp(448.0F, exponent), random() % 2 == 0 ? 0.0F : 1e30F);
    if (i / 32 % 11 == 0) x = i % 2 == 0 ? 0.0F : -0.0F;
    if (buffer.view().dtype == MEGAMLA_F32) {
      buffer.as<float>()[i] = x;
    } else {
      buffer.as<format::Bf16>()[i] = format::to_bf16(x);
    }
  }
}

float value(const TensorBuffer& buffer, int64_t i) {
  return buffer.view().dtype == MEGAMLA_F32 ? buffer.as<float>()[i] : to_float(buffer.as<format::Bf16>()[i]);
}

// The smallest e >= lowest with amax <= 448 * 2^e.
int smallest_exponent(double amax, int lowest) {
  int e = lowest;
  while (std::ldexp(448.0, e) < amax) ++e;
  return e;
}

void run(const megamla_output_cast_params& p, megamla_device device, int threads) {
  const megamla_exec exec = exec_on(device, threads);
  ASSERT_EQ(megamla_output_cast(&p, &exec), MEGAMLA_OK) << megamla_last_error();
}

megamla_output_cast_params params_of(megamla_cast_target target, const megamla_tensor& in, const megamla_tensor& out,
                                     const megamla_tensor& scale) {
  megamla_output_cast_params p;
  megamla_output_cast_init(&p);
  p.target = target;
  p.in = in;
  p.out = out;
  p.out_scale = scale;
  return p;
}

// Tokens begin .. begin + tokens - 1 of a pair that was allocated for more.
TEST(OutputCast, AttentionOutputIntoASliceOfAPair) {
  std::mt19937 random(51);
  for (const megamla_dtype dtype : {MEGAMLA_F32, MEGAMLA_BF16}) {
    for (const auto& [tokens, groups, begin] : {std::tuple<int64_t, int64_t, int64_t>{5, 2, 3}, {1, 1, 0}, {4, 3, 1}}) {
      const int64_t allocated = tokens + begin + 1;
      const int64_t columns = (allocated + 3) / 4 * 4;
      const int64_t heads = groups * 8;
      TensorBuffer o(dtype, {tokens, heads, 512});
      fill_hard(o, tokens * heads * 512, random);
      TensorBuffer codes(MEGAMLA_F8_E4M3, {allocated, groups, 4096});
      TensorBuffer words(MEGAMLA_I32, {groups, 32, columns});
      megamla_tensor pair_scale = host_tensor(words.as<void>(), MEGAMLA_I32, {allocated, groups, 32});
      pair_scale.stride[0] = 1;
      pair_scale.stride[1] = 32 * columns;
      pair_scale.stride[2] = columns;
      const megamla_output_cast_params p =
          params_of(MEGAMLA_CAST_ATTENTION_OUTPUT, o, slice(codes, begin, begin + tokens),
                    slice(pair_scale, begin, begin + tokens));
      for (const megamla_device device : kDevices) {
        codes.refill();
        words.refill();
        run(p, device, 3);
        for (int64_t t = 0; t < allocated; ++t) {
          for (int64_t i = 0; i < groups * 4096; ++i) {
            const int64_t h = i / 512;
            const int64_t chunk = i % 512 / 32 * 8 + h % 8;
            const uint8_t code = codes.at<uint8_t>(t, h / 8, chunk * 32 + i % 32);
            const auto byte = static_cast<uint8_t>(words.at<uint32_t>(h / 8, chunk / 4, t) >> (8 * (chunk % 4)));
            if (t < begin || t >= begin + tokens) {
              ASSERT_TRUE(code == 0xa5 && byte == 0xa5) << "outside of the slice";
              continue;
            }
            const int64_t first = ((t - begin) * heads + h) * 512 + i % 512 / 32 * 32;
            double amax = static_cast<double>(1e-4F);
            for (int64_t j = 0; j < 32; ++j) amax = std::max(amax, std::abs(static_cast<double>(value(o, first + j))));
            const int e = smallest_exponent(amax, -22);
            ASSERT_EQ(byte, e + 127) << "token " << t << " head " << h << " dim " << i % 512;
            ASSERT_EQ(code, format::float_to_e4m3(std::ldexp(value(o, first + i % 32), -e)));
          }
        }
        for (int64_t t = allocated; t < columns; ++t)
          ASSERT_EQ(words.at<uint32_t>(0, 0, t), 0xa5a5a5a5U) << "pad column";
        EXPECT_TRUE(codes.guards_intact() && words.guards_intact());
      }
    }
  }
}

TEST(OutputCast, Mxfp8) {
  std::mt19937 random(52);
  for (const megamla_dtype dtype : {MEGAMLA_F32, MEGAMLA_BF16}) {
    for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{1, 32}, {33, 160}, {129, 128}, {3, 0}}) {
      TensorBuffer x(dtype, {rows, k});
      fill_hard(x, rows * k, random);
      for (int64_t i = 0; i < std::min<int64_t>(rows * k, 16); ++i) {  // bf16 subnormals count as they are
        if (dtype == MEGAMLA_BF16) x.as<uint16_t>()[i] = static_cast<uint16_t>(i);
      }
      const int64_t padded_columns = (k / 32 + 3) / 4 * 4;
      const int64_t scale_bytes = (rows + 127) / 128 * 128 * padded_columns;
      TensorBuffer codes(MEGAMLA_F8_E4M3, {rows, k});
      TensorBuffer scales(MEGAMLA_F8_E8M0, {scale_bytes});
      for (const megamla_device device : kDevices) {
        codes.refill();
        scales.refill();
        run(params_of(MEGAMLA_CAST_MXFP8, x, codes, scales), device, 3);
        std::vector<uint8_t> wanted(static_cast<size_t>(scale_bytes));  // padding is 0
        for (int64_t m = 0; m < rows; ++m) {
          for (int64_t c = 0; c < k / 32; ++c) {
            float group[32];
            double amax = 0;
            for (int64_t i = 0; i < 32; ++i) {
              group[i] = format::round_to_bf16(value(x, m * k + c * 32 + i));
              amax = std::max(amax, std::abs(static_cast<double>(group[i])));
            }
            const int e = smallest_exponent(amax, -127);
            const int64_t at = m / 128 * 128 * padded_columns + c / 4 * 512 + m % 32 * 16 + m % 128 / 32 * 4 + c % 4;
            wanted[static_cast<size_t>(at)] = static_cast<uint8_t>(e + 127);
            for (int64_t i = 0; i < 32; ++i) {
              ASSERT_EQ(codes.at<uint8_t>(m, c * 32 + i), format::float_to_e4m3(std::ldexp(group[i], -e)))
                  << "row " << m << " column " << c * 32 + i;
            }
          }
        }
        EXPECT_TRUE(scales.values<uint8_t>() == wanted);
        EXPECT_TRUE(codes.guards_intact() && scales.guards_intact());
      }
    }
  }
}

TEST(OutputCast, RowsOfTheInputMayLieApart) {
  std::mt19937 random(53);
  TensorBuffer dense(MEGAMLA_F32, {3, 8, 512});
  TensorBuffer apart(MEGAMLA_F32, {3, 8, 512}, 96);
  fill_hard(dense, 3 * 4096, random);
  for (int64_t t = 0; t < 3; ++t) std::memcpy(&apart.at<float>(t, 0), &dense.at<float>(t, 0), 4096 * 4);
  TensorBuffer codes(MEGAMLA_F8_E4M3, {3, 1, 4096});
  TensorBuffer words(MEGAMLA_I32, {1, 32, 4});
  megamla_tensor scale = host_tensor(words.as<void>(), MEGAMLA_I32, {3, 1, 32});
  scale.stride[0] = 1;
  scale.stride[2] = 4;
  for (const megamla_device device : kDevices) {
    run(params_of(MEGAMLA_CAST_ATTENTION_OUTPUT, dense, codes, scale), device, 1);
    const std::vector<uint8_t> wanted = codes.bytes();
    codes.refill();
    run(params_of(MEGAMLA_CAST_ATTENTION_OUTPUT, apart, codes, scale), device, 1);
    EXPECT_TRUE(codes.bytes() == wanted);
  }
}

TEST(OutputCast, NonFiniteValuesSpoilTheirGroupAlone) {
  std::mt19937 random(54);
  TensorBuffer o(MEGAMLA_F32, {2, 8, 512});
  fill_hard(o, 4096, random);
  std::memcpy(&o.at<float>(1, 0), &o.at<float>(0, 0), 4096 * 4);
  TensorBuffer codes(MEGAMLA_F8_E4M3, {2, 1, 4096});
  TensorBuffer words(MEGAMLA_I32, {1, 32, 4});
  megamla_tensor scale = host_tensor(words.as<void>(), MEGAMLA_I32, {2, 1, 32});
  scale.stride[0] = 1;
  scale.stride[2] = 4;
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    o.at<float>(1, 2, 65) = bad;  // head 2, chunk 2: fused chunk 18
    for (const megamla_device device : kDevices) {
      run(params_of(MEGAMLA_CAST_ATTENTION_OUTPUT, o, codes, scale), device, 1);
      for (int64_t i = 0; i < 4096; ++i) {
        if (i / 32 == 2 * 8 + 2) continue;
        ASSERT_EQ(codes.at<uint8_t>(0, 0, i), codes.at<uint8_t>(1, 0, i)) << i;
      }
    }
  }
}

TEST(OutputCast, NoTokens) {
  TensorBuffer o(MEGAMLA_F32, {0, 8, 512});
  TensorBuffer codes(MEGAMLA_F8_E4M3, {0, 1, 4096});
  TensorBuffer words(MEGAMLA_I32, {0, 1, 32});
  TensorBuffer z(MEGAMLA_F32, {0, 128});
  TensorBuffer z_codes(MEGAMLA_F8_E4M3, {0, 128});
  TensorBuffer z_scales(MEGAMLA_F8_E8M0, {0});
  for (const megamla_device device : kDevices) {
    run(params_of(MEGAMLA_CAST_ATTENTION_OUTPUT, o, codes, words), device, 1);
    run(params_of(MEGAMLA_CAST_MXFP8, z, z_codes, z_scales), device, 1);
  }
}

using P = megamla_output_cast_params;

TEST(OutputCast, BadArgumentsOfAttentionOutput) {
  TensorBuffer o(MEGAMLA_F32, {3, 16, 512});
  o.fill<float>(1);
  TensorBuffer codes(MEGAMLA_F8_E4M3, {3, 2, 4096});
  TensorBuffer words(MEGAMLA_I32, {2, 32, 4});
  megamla_tensor scale = host_tensor(words.as<void>(), MEGAMLA_I32, {3, 2, 32});
  scale.stride[0] = 1;
  scale.stride[1] = 128;
  scale.stride[2] = 4;
  BadInput<P> bad("output_cast", megamla_output_cast, params_of(MEGAMLA_CAST_ATTENTION_OUTPUT, o, codes, scale),
                  {&codes, &words});
  bad.tensor("in", &P::in, true, 2);
  bad.tensor("out", &P::out, true, 0);
  bad.tensor("out_scale", &P::out_scale, true, 3);
  bad.output("out", &P::out, {&P::in, &P::out_scale});
  bad.output("out_scale", &P::out_scale, {&P::in});
  bad.expect("in", "rows of 256", [](P& p) { p.in.shape[2] = 256; });
  bad.expect("in heads", "12 heads", [](P& p) { p.in.shape[1] = 12; });
  bad.expect("out", "one group of two", [](P& p) { p.out.shape[1] = 1; });
  bad.expect("out", "two tokens of three", [](P& p) { p.out.shape[0] = 2; });
  bad.expect("out_scale", "31 words", [](P& p) { p.out_scale.shape[2] = 31; });
  bad.expect("out_scale", "an A that is no multiple of 4", [](P& p) {
    p.out_scale.stride[2] = 3;
    p.out_scale.stride[1] = 96;
  });
  bad.expect("out_scale", "tokens apart", [](P& p) { p.out_scale.stride[0] = 2; });
  bad.expect("out_scale", "groups too close", [](P& p) { p.out_scale.stride[1] = 64; });
  bad.expect("target", "2", [](P& p) { p.target = 2; });
  bad.expect("target", "-1", [](P& p) { p.target = -1; });
  bad.expect("reserved", "1", [](P& p) { p.reserved = 1; });
}

TEST(OutputCast, BadArgumentsOfMxfp8) {
  TensorBuffer z(MEGAMLA_F32, {3, 64});
  z.fill<float>(1);
  TensorBuffer codes(MEGAMLA_F8_E4M3, {3, 64});
  TensorBuffer scales(MEGAMLA_F8_E8M0, {128 * 4});
  BadInput<P> bad("output_cast", megamla_output_cast, params_of(MEGAMLA_CAST_MXFP8, z, codes, scales),
                  {&codes, &scales});
  bad.tensor("in", &P::in, true, 1);
  bad.tensor("out", &P::out, true, 0);
  bad.tensor("out_scale", &P::out_scale, true, 0);
  bad.output("out", &P::out, {&P::in, &P::out_scale});
  bad.output("out_scale", &P::out_scale, {&P::in});
  bad.expect("in columns", "48 columns", [](P& p) { p.in.shape[1] = 48; });
  bad.expect("out", "32 columns of 64", [](P& p) { p.out.shape[1] = 32; });
  bad.expect("out_scale", "scales without padding", [](P& p) { p.out_scale.shape[0] = 6; });
}

}  // namespace
}  // namespace megamla::test
