// Widening and narrowing of FP8 and bf16 against the scalar functions of the format, for every instruction set.
#include "cpu/widen.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "format/small_float.hpp"
#include "support/simd_targets.hpp"

namespace megamla::test {
namespace {

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// A group of 32 codes per scale; every code meets every power of two.
TEST(Widen, EveryCodeOfE4m3TimesEveryScale) {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  for (int byte = 0; byte < 256; ++byte) {
    for (int code = 0; code < 256; ++code) codes.push_back(static_cast<uint8_t>(code));
    scales.insert(scales.end(), 256 / 32, format::ue8m0_to_float(static_cast<uint8_t>(byte)));
  }
  // An odd number of groups leaves half a register over.
  for (const size_t count : {codes.size(), codes.size() - 32, size_t{32}, size_t{0}}) {
    on_every_target([&] {
      std::vector<float> wide(count + 1, 7.0F);
      std::vector<format::Bf16> narrow(count + 1, format::Bf16{0x1234});
      cpu::widen_e4m3(codes.data(), scales.data(), static_cast<int64_t>(count), wide.data());
      cpu::widen_e4m3(codes.data(), scales.data(), static_cast<int64_t>(count), narrow.data());
      for (size_t i = 0; i < count; ++i) {
        const float wanted = format::e4m3_to_float(codes[i]) * scales[i / 32];
        ASSERT_TRUE(same(wide[i], wanted)) << "code " << i % 256 << " scale byte " << i / 256;
        // bf16 takes the upper half: exact wherever the product is a normal number.
        const float upper = std::bit_cast<float>(std::bit_cast<uint32_t>(wanted) & 0xffff0000U);
        ASSERT_TRUE(same(format::to_float(narrow[i]), upper)) << "code " << i % 256 << " scale byte " << i / 256;
      }
      EXPECT_EQ(wide[count], 7.0F);
      EXPECT_EQ(narrow[count].bits, 0x1234);
    });
  }
}

TEST(Widen, Bf16OfEveryCountAndEveryValue) {
  std::vector<format::Bf16> values;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) values.push_back({static_cast<uint16_t>(bits)});
  for (size_t count = 0; count <= values.size(); count = count < 100 ? count + 1 : count * 2 + 1) {
    on_every_target([&] {
      std::vector<float> wide(count + 1, 7.0F);
      cpu::widen_bf16(values.data() + values.size() - count, static_cast<int64_t>(count), wide.data());
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), uint32_t{values[values.size() - count + i].bits} << 16);
      }
      EXPECT_EQ(wide[count], 7.0F);
    });
  }
}

TEST(Widen, NarrowsEveryUpperHalfAtEveryTie) {
  std::vector<float> values;
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (const size_t count : {values.size(), size_t{33}, size_t{5}, size_t{0}}) {
    on_every_target([&] {
      std::vector<format::Bf16> narrow(count + 1, format::Bf16{0x1234});
      cpu::narrow_to_bf16(values.data(), static_cast<int64_t>(count), narrow.data());
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(narrow[i].bits, format::to_bf16(values[i]).bits) << std::hexfloat << values[i];
      EXPECT_EQ(narrow[count].bits, 0x1234);
    });
  }
}

}  // namespace
}  // namespace megamla::test
