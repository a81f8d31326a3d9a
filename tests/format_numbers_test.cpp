// Number formats: bf16, e4m3, e2m1, ue8m0, and the exponent of a scale group.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

#include "format/bf16.hpp"
#include "format/small_float.hpp"
#include "support/nearest_code.hpp"

namespace megamla::test {
namespace {

using namespace format;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

float from_bits(uint32_t bits) { return bit_cast<float>(bits); }
float below(float x) { return std::nextafterf(x, -kInfinity); }
float above(float x) { return std::nextafterf(x, kInfinity); }

// All sign, exponent and mantissa ranges: about 4.3 million of the 2^32 values.
template <class F>
void for_many_floats(F&& f) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 997) f(from_bits(static_cast<uint32_t>(bits)));
}

// They are usable in constant expressions.
static_assert(to_bf16(1.0F).bits == 0x3f80 && to_float(Bf16{0xc000}) == -2.0F);
static_assert(float_to_e4m3(448.0F) == 0x7e && e4m3_to_float(0x01) == 0x1p-9F);
static_assert(float_to_e2m1(-6.0F) == 0xf && e2m1_to_float(3) == 1.5F);
static_assert(ue8m0_to_float(127) == 1.0F && group_exponent(448.0F) == 0);

TEST(Bf16, EveryCodeComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float x = to_float(Bf16{static_cast<uint16_t>(bits)});
    const uint32_t quiet = std::isnan(x) ? 0x40U : 0U;
    ASSERT_EQ(to_bf16(x).bits, bits | quiet) << bits;
    ASSERT_EQ(bit_cast<uint32_t>(x), bits << 16);
  }
}

// By distance to the neighbours towards zero and away from it; beyond the largest bf16 the next step would be 2^128.
uint16_t nearest_bf16(float x) {
  const auto magnitude = [](uint32_t bits) {
    return (bits & 0x7fffU) == 0x7f80U ? 0x1p128 : std::fabs(static_cast<double>(from_bits(bits << 16)));
  };
  const uint32_t toward = bit_cast<uint32_t>(x) >> 16;
  const double a = std::fabs(static_cast<double>(x));
  const double down = a - magnitude(toward);
  const double up = magnitude(toward + 1) - a;
  const bool away = std::isfinite(x) && (up < down || (up == down && toward % 2 == 1));
  return static_cast<uint16_t>(toward + (away ? 1 : 0));
}

TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const uint32_t lower : {0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float x = from_bits(upper << 16 | lower);
      if (std::isnan(x)) continue;
      ASSERT_EQ(to_bf16(x).bits, nearest_bf16(x)) << std::hexfloat << x;
    }
  }
  for_many_floats([](float x) {
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(round_to_bf16(x)));
      return;
    }
    ASSERT_EQ(to_bf16(x).bits, nearest_bf16(x)) << std::hexfloat << x;
  });
}

TEST(Bf16, ANanWithALowPayloadStaysNan) {
  for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0x7f80ffffU}) {
    const uint16_t got = to_bf16(from_bits(bits)).bits;
    EXPECT_TRUE(std::isnan(to_float(Bf16{got})));
    EXPECT_EQ(got & 0x8040U, (bits >> 16 & 0x8000U) | 0x40U);
  }
  EXPECT_EQ(to_bf16(FLT_MAX).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-0.0F).bits, 0x8000);
}

TEST(E4m3, EveryCodeDecodesAndComesBack) {
  const SmallFloat exact = e4m3();
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float x = e4m3_to_float(byte);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(x)) << code;
      EXPECT_EQ(float_to_e4m3(x), 0x7f);
      continue;
    }
    EXPECT_EQ(x, exact.value(byte)) << code;
    EXPECT_EQ(std::signbit(x), code >= 0x80);
    EXPECT_EQ(float_to_e4m3(x), code);
  }
}

TEST(E4m3, TiesGoToTheEvenCode) {
  for (int code = 0; code + 1 < 0x7f; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code));
    const float middle = (low + e4m3_to_float(static_cast<uint8_t>(code + 1))) / 2;
    EXPECT_EQ(float_to_e4m3(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(float_to_e4m3(below(middle)), code);
    EXPECT_EQ(float_to_e4m3(above(middle)), code + 1);
    EXPECT_EQ(float_to_e4m3(-middle), 0x80 | (code % 2 == 0 ? code : code + 1));
  }
}

TEST(E4m3, NearestOfManyFloats) {
  const SmallFloat exact = e4m3();
  for_many_floats([&](float x) {
    const uint8_t wanted = std::isnan(x) ? 0x7f : exact.nearest(static_cast<double>(x));
    ASSERT_EQ(float_to_e4m3(x), wanted) << std::hexfloat << x;
  });
}

TEST(E4m3, SaturatesAndKeepsTheSignOfZero) {
  for (const float x : {448.0F, above(448.0F), 463.0F, 464.0F, 480.0F, 1e30F, FLT_MAX, kInfinity}) {
    EXPECT_EQ(float_to_e4m3(x), 0x7e) << x;
    EXPECT_EQ(float_to_e4m3(-x), 0xfe) << x;
  }
  EXPECT_EQ(float_to_e4m3(0.0F), 0x00);
  EXPECT_EQ(float_to_e4m3(-0.0F), 0x80);
  EXPECT_EQ(float_to_e4m3(-0x1p-149F), 0x80);
  EXPECT_EQ(float_to_e4m3(-kNan), 0x7f);
}

TEST(E2m1, EveryCodeDecodesAndComesBack) {
  const SmallFloat exact = e2m1();
  for (int code = 0; code < 16; ++code) {
    const auto nibble = static_cast<uint8_t>(code);
    EXPECT_EQ(e2m1_to_float(nibble), exact.value(nibble)) << code;
    EXPECT_EQ(std::signbit(e2m1_to_float(nibble)), code >= 8);
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(nibble)), code);
  }
}

TEST(E2m1, TiesGoToTheEvenCode) {
  const struct {
    float x;
    float rounded;
  } ties[] = {{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2}, {2.5F, 2}, {3.5F, 4}, {5, 4}};
  for (const auto& tie : ties) {
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(tie.x)), tie.rounded) << tie.x;
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(-tie.x)), -tie.rounded) << tie.x;
    EXPECT_LT(e2m1_to_float(float_to_e2m1(below(tie.x))), tie.x);
    EXPECT_GT(e2m1_to_float(float_to_e2m1(above(tie.x))), tie.x);
  }
}

TEST(E2m1, NearestOfManyFloats) {
  const SmallFloat exact = e2m1();
  for_many_floats([&](float x) {
    if (std::isnan(x)) {
      ASSERT_EQ(float_to_e2m1(x) & 7, 7);
      return;
    }
    ASSERT_EQ(float_to_e2m1(x), exact.nearest(static_cast<double>(x))) << std::hexfloat << x;
  });
}

TEST(Ue8m0, EveryByte) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(ue8m0_to_float(static_cast<uint8_t>(byte)), std::ldexp(1.0, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_float(0xff)));
  for (int e = -127; e <= 127; ++e) EXPECT_EQ(inverse_power_of_two(e), std::ldexp(1.0, -e)) << e;
}

// amax = 448 * 2^k keeps the exponent k; one fp32 step above takes the next one: a rounded log2 gets these wrong.
TEST(GroupExponent, PowersOfTwoStay) {
  for (int k = -134; k <= 119; ++k) {
    const auto edge = static_cast<float>(std::ldexp(448.0, k));
    const int floor = -127;
    EXPECT_EQ(group_exponent(edge), std::max(k, floor)) << k;
    EXPECT_EQ(group_exponent(above(edge)), std::max(k + 1, floor)) << k;
    EXPECT_EQ(group_exponent(below(edge)), std::max(k, floor)) << k;
  }
  EXPECT_EQ(group_exponent(FLT_MAX), 120);
  EXPECT_EQ(group_exponent(0.0F), -127);
  EXPECT_EQ(group_exponent(0x1p-149F), -127);
  EXPECT_EQ(group_exponent(1e-4F), 105 - 127);
}

TEST(GroupExponent, SmallestOfManyFloats) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const float amax = from_bits(static_cast<uint32_t>(random()) & 0x7fffffffU);
    if (!std::isfinite(amax)) continue;
    ASSERT_EQ(group_exponent(amax), smallest_exponent(amax)) << std::hexfloat << amax;
  }
}

}  // namespace
}  // namespace megamla::test
