// The CPU's vector casts against the scalar ones of the format, for every instruction set.
#include "cpu/cast_groups.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "format/output_cast.hpp"
#include "support/simd_targets.hpp"

namespace megamla::test {
namespace {

constexpr int64_t kGroup = format::kCastGroup;
constexpr int64_t kStride = 40;  // codes of groups may lie apart

struct Cast {
  std::vector<uint8_t> data, scales;
  explicit Cast(int64_t groups)
      : data(static_cast<size_t>(groups * kStride + 8), 0xa5), scales(static_cast<size_t>(groups + 8), 0xa5) {}
  bool operator==(const Cast&) const = default;
};

float value_of(float x) { return x; }
float value_of(format::Bf16 x) { return format::to_float(x); }

template <class T>
void expect_same_bytes(const std::vector<T>& x) {
  const auto groups = static_cast<int64_t>(x.size()) / kGroup;
  for (const bool mxfp8 : {false, true}) {
    Cast wanted(groups);
    Cast got(groups);
    for (int64_t g = 0; g < groups; ++g) {
      float values[kGroup];
      for (int64_t i = 0; i < kGroup; ++i) values[i] = value_of(x[static_cast<size_t>(g * kGroup + i)]);
      if (mxfp8) {
        for (float& value : values) value = format::round_to_bf16(value);
      }
      uint8_t* data = wanted.data.data() + g * kStride;
      wanted.scales[static_cast<size_t>(g)] =
          mxfp8 ? format::cast_mxfp8_group(values, data) : format::cast_output_group(values, data);
    }
    if (mxfp8) {
      cpu::cast_mxfp8_groups(x.data(), groups, got.data.data(), kStride, got.scales.data());
    } else {
      cpu::cast_output_groups(x.data(), groups, got.data.data(), kStride, got.scales.data());
    }
    ASSERT_TRUE(wanted == got) << (mxfp8 ? "mxfp8, " : "attention output, ") << groups << " groups";
  }
}

void expect_same_bytes_of_both_types(const std::vector<float>& x) {
  expect_same_bytes(x);
  std::vector<format::Bf16> narrow;
  for (const float value : x) narrow.push_back(format::to_bf16(value));
  expect_same_bytes(narrow);
}

TEST(CastGroups, RandomGroupsOfEveryCount) {
  on_every_target([] {
    std::mt19937 random(71);
    std::normal_distribution<float> normal;
    for (int round = 0; round < 3000 && !testing::Test::HasFatalFailure(); ++round) {
      std::vector<float> x(static_cast<size_t>(round % 41 * kGroup));
      const float scale = std::ldexp(1.0F, static_cast<int>(random() % 280) - 145);
      for (float& value : x) {
        value = round % 3 == 0 ? std::bit_cast<float>(static_cast<uint32_t>(random())) : normal(random) * scale;
      }
      expect_same_bytes_of_both_types(x);
    }
  });
}

// Every bf16 in a group of ordinary values, and in a group of zeros.
TEST(CastGroups, EveryBf16InAGroup) {
  on_every_target([] {
    for (const float fill : {0.0F, 0.37F}) {
      std::vector<float> x(size_t{0x10000} * kGroup, fill);
      for (uint32_t bits = 0; bits <= 0xffff; ++bits)
        x[bits * kGroup + bits % kGroup] = std::bit_cast<float>(bits << 16);
      expect_same_bytes_of_both_types(x);
    }
  });
}

// Every e4m3 value and midpoint with its neighbours, under every exponent.
TEST(CastGroups, EveryBoundaryOfE4m3UnderEveryExponent) {
  std::vector<float> boundaries;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = format::e4m3_to_float(code);
    const float middle = (low + format::e4m3_to_float(static_cast<uint8_t>(code + 1))) / 2;
    for (const float value : {low, middle}) {
      for (const float beside : {std::nextafterf(value, -INFINITY), value, std::nextafterf(value, INFINITY)}) {
        boundaries.push_back(beside);
        boundaries.push_back(-beside);
      }
    }
  }
  on_every_target([&] {
    for (int exponent = -130; exponent <= 119; ++exponent) {
      std::vector<float> x;
      for (const float value : boundaries) {
        if (x.size() % kGroup == 0) x.push_back(std::ldexp(448.0F, exponent));
        x.push_back(std::ldexp(value, exponent));
      }
      x.resize(x.size() / kGroup * kGroup);
      expect_same_bytes_of_both_types(x);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

}  // namespace
}  // namespace megamla::test
