// The CPU's vector rotations against the scalar ones of the format, for every instruction set: the same bits.
#include "cpu/rotate.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "format/kv_record.hpp"
#include "format/rope.hpp"
#include "support/simd_targets.hpp"

namespace megamla::test {
namespace {

constexpr int kDims = format::kRopeDim;
constexpr int kPairs = kDims / 2;

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Angles of a table, factors of any size, any bit pattern.
float random_value(std::mt19937& random, int kind) {
  const auto bits = static_cast<uint32_t>(random());
  if (kind == 0) return std::bit_cast<float>(bits);
  const float value = static_cast<float>(bits) * 0x1p-31F - 1.0F;
  return kind == 1 ? value : std::ldexp(value, static_cast<int>(random() % 40) - 20);
}

TEST(Rotate, ForthAndBack) {
  on_every_target([] {
    std::mt19937 random(91);
    for (int row = 0; row < 20000; ++row) {
      float cos_sin[kDims];
      float back[kDims];
      format::Bf16 forth[kDims];
      for (float& value : cos_sin) value = random_value(random, row % 3);
      for (float& value : back) value = random_value(random, row % 3);
      for (format::Bf16& value : forth) value = format::to_bf16(random_value(random, row % 3));
      float wanted_back[kDims];
      float wanted_forth[kDims];
      for (int j = 0; j < kPairs; ++j) {
        const format::Pair x{format::to_float(forth[2 * j]), format::to_float(forth[2 * j + 1])};
        const format::Pair y = format::rotate(x, cos_sin[j], cos_sin[kPairs + j]);
        wanted_forth[2 * j] = format::round_to_bf16(y.x0);
        wanted_forth[2 * j + 1] = format::round_to_bf16(y.x1);
        const format::Pair z = format::rotate_back({back[2 * j], back[2 * j + 1]}, cos_sin[j], cos_sin[kPairs + j]);
        wanted_back[2 * j] = z.x0;
        wanted_back[2 * j + 1] = z.x1;
      }
      cpu::rotate_rope(cos_sin, forth);
      cpu::rotate_rope_back(cos_sin, back);
      for (int d = 0; d < kDims; ++d) {
        ASSERT_TRUE(same(format::to_float(forth[d]), wanted_forth[d])) << "forth, row " << row << " dim " << d;
        ASSERT_TRUE(same(back[d], wanted_back[d])) << "back, row " << row << " dim " << d;
      }
    }
  });
}

}  // namespace
}  // namespace megamla::test
