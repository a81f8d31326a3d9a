// KV records and FP8 casts against the rules of contract sections 3.1, 7 and 11 in double precision.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "format/kv_record.hpp"
#include "format/output_cast.hpp"
#include "support/nearest_code.hpp"

namespace megamla::test {
namespace {

using namespace format;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");
constexpr megamla_kv_format kFormats[] = {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584};

struct Record {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
};

Record encode(megamla_kv_format kind, const std::vector<float>& x) {
  // Filled beforehand: a byte that the codec leaves out shows.
  Record record{std::vector<uint8_t>(static_cast<size_t>(data_bytes(kind)), 0xa5),
                std::vector<uint8_t>(static_cast<size_t>(scale_bytes(kind)), 0xa5)};
  encode_row(kind, x.data(), record.data.data(), record.scale.data());
  return record;
}

std::vector<float> decode(megamla_kv_format kind, const Record& record) {
  std::vector<float> x(kHeadDim);
  decode_row(kind, record.data.data(), record.scale.data(), x.data());
  return x;
}

// Values whose groups differ widely in magnitude; every seventh row lies near the floors of the scales.
std::vector<float> random_row(std::mt19937& random, int row, size_t count = kHeadDim) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) {
    const int spread = row % 7 == 0 ? -12 - static_cast<int>(i / 16 % 8) : static_cast<int>(i / 16 * 5 % 40) - 20;
    const double value = std::ldexp(static_cast<double>(random()) / 0x1p31 - 1.0, spread);
    x[i] = row % 2 == 0 ? round_to_bf16(static_cast<float>(value)) : static_cast<float>(value);
  }
  return x;
}

float amax_of(const float* x, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(x[i]));
  return largest;
}

// A group with a power-of-two scale: `codes` and the scale byte for x.
void expect_fp8_group(const float* x, size_t count, float floor, const uint8_t* codes, uint8_t scale) {
  const SmallFloat exact = e4m3();
  const int e = smallest_exponent(std::fmax(amax_of(x, count), floor));
  EXPECT_EQ(scale, e + 127);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(codes[i], exact.nearest(std::ldexp(static_cast<double>(x[i]), -e))) << i << ": " << std::hexfloat << x[i];
  }
}

TEST(Records, BytesPerRecord) {
  EXPECT_EQ(record_bytes(MEGAMLA_KV_FP8_528), 528);
  EXPECT_EQ(record_bytes(MEGAMLA_KV_NVFP4_288), 288);
  EXPECT_EQ(record_bytes(MEGAMLA_KV_FP8_584), 584);
  EXPECT_EQ(record_bytes(MEGAMLA_KV_NONE), 0);
  for (const megamla_kv_format kind : kFormats) {
    with_record(kind, [&](auto record) {
      EXPECT_EQ(record.kFormat, kind);
      EXPECT_EQ(record.kDataBytes, data_bytes(kind));
      EXPECT_EQ(record.kScaleBytes, scale_bytes(kind));
      EXPECT_NE(std::string(name(kind)).find(std::to_string(record_bytes(kind))), std::string::npos);
    });
  }
}

TEST(Records, Fp8_528) {
  std::mt19937 random(11);
  for (int row = 0; row < 70; ++row) {
    const auto x = random_row(random, row);
    const Record record = encode(MEGAMLA_KV_FP8_528, x);
    for (size_t g = 0; g < 16; ++g) {
      expect_fp8_group(&x[g * 32], 32, kAmaxFloor, &record.data[g * 32], record.scale[g]);
    }
  }
}

TEST(Records, Fp8_584) {
  std::mt19937 random(12);
  for (int row = 0; row < 70; ++row) {
    const auto x = random_row(random, row);
    const Record record = encode(MEGAMLA_KV_FP8_584, x);
    for (size_t g = 0; g < 7; ++g) {
      expect_fp8_group(&x[g * 64], 64, kAmaxFloor, &record.data[g * 64], record.scale[g]);
    }
    EXPECT_EQ(record.scale[7], 0);
    for (size_t d = 448; d < 512; ++d) {
      const size_t at = 448 + 2 * (d - 448);
      EXPECT_EQ(record.data[at] | record.data[at + 1] << 8, to_bf16(x[d]).bits) << d;
    }
  }
}

TEST(Records, Nvfp4_288) {
  const SmallFloat scales = e4m3();
  const SmallFloat codes = e2m1();
  std::mt19937 random(13);
  for (int row = 0; row < 70; ++row) {
    const auto x = random_row(random, row);
    const Record record = encode(MEGAMLA_KV_NVFP4_288, x);
    for (size_t g = 0; g < 32; ++g) {
      // Products and quotients of two fp32 in double, rounded to fp32, are the correctly rounded fp32 ones.
      const double sixth = static_cast<double>(static_cast<float>(1.0 / 6.0));
      const auto wanted = static_cast<float>(static_cast<double>(amax_of(&x[g * 16], 16)) * sixth);
      const uint8_t scale = scales.nearest(std::fmin(std::fmax(static_cast<double>(wanted), 0x1p-9), 448.0));
      ASSERT_EQ(record.scale[g], scale) << g;
      for (size_t d = g * 16; d < g * 16 + 16; ++d) {
        const auto quotient = static_cast<float>(static_cast<double>(x[d]) / scales.value(scale));
        const int code = record.data[d / 2] >> (d % 2 == 0 ? 0 : 4) & 15;
        ASSERT_EQ(code, codes.nearest(static_cast<double>(quotient))) << d << ": " << std::hexfloat << x[d];
      }
    }
  }
}

TEST(Records, ZerosKeepTheirSign) {
  std::vector<float> x(kHeadDim, 0.0F);
  for (size_t i = 1; i < x.size(); i += 2) x[i] = -0.0F;
  for (const megamla_kv_format kind : kFormats) {
    const Record record = encode(kind, x);
    const auto y = decode(kind, record);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(bit_cast<uint32_t>(y[i]), bit_cast<uint32_t>(x[i])) << name(kind) << " " << i;
    }
    EXPECT_EQ(record.scale[0], kind == MEGAMLA_KV_NVFP4_288 ? 0x01 : 105);
  }
}

// A scale that rounded down lets a quotient exceed 6, and the largest scale is 448.
TEST(Records, Nvfp4Saturates) {
  std::vector<float> x(kHeadDim, 0.0F);
  x[0] = 6.0F * 1.06F;  // scale 1.06 rounds to 1
  x[17] = -1e30F;
  const Record record = encode(MEGAMLA_KV_NVFP4_288, x);
  EXPECT_EQ(e4m3_to_float(record.scale[0]), 1.0F);
  EXPECT_EQ(record.data[0], 0x07);
  EXPECT_EQ(e4m3_to_float(record.scale[1]), 448.0F);
  EXPECT_EQ(record.data[8], 0xf0);
}

TEST(Records, DecodeIsCodeTimesScale) {
  const SmallFloat fp8 = e4m3();
  const SmallFloat fp4 = e2m1();
  std::mt19937 random(14);
  for (const megamla_kv_format kind : kFormats) {
    for (int row = 0; row < 50; ++row) {
      Record record = encode(kind, std::vector<float>(kHeadDim));
      for (uint8_t& byte : record.data) {
        do byte = static_cast<uint8_t>(random());
        while (kind != MEGAMLA_KV_NVFP4_288 && (byte & 0x7f) == 0x7f);
      }
      for (uint8_t& byte : record.scale) byte = static_cast<uint8_t>(60 + random() % 60);
      const auto x = decode(kind, record);
      for (size_t d = 0; d < kHeadDim; ++d) {
        double wanted = 0;
        if (kind == MEGAMLA_KV_NVFP4_288) {
          const auto code = static_cast<uint8_t>(record.data[d / 2] >> (d % 2 * 4) & 15);
          wanted = fp4.value(code) * fp8.value(record.scale[d / 16]);
        } else if (kind == MEGAMLA_KV_FP8_584 && d >= 448) {
          const size_t at = 448 + 2 * (d - 448);
          wanted = static_cast<double>(to_float({static_cast<uint16_t>(record.data[at] | record.data[at + 1] << 8)}));
        } else {
          const size_t group = kind == MEGAMLA_KV_FP8_528 ? 32 : 64;
          wanted = std::ldexp(fp8.value(record.data[d]), record.scale[d / group] - 127);
        }
        ASSERT_EQ(x[d], wanted) << name(kind) << " " << d;
      }
    }
  }
}

// What an fp8 record holds is a fixed point: encoding it again changes no value.
TEST(Records, Fp8ValuesComeBack) {
  std::mt19937 random(15);
  for (const megamla_kv_format kind : {MEGAMLA_KV_FP8_528, MEGAMLA_KV_FP8_584}) {
    for (int row = 0; row < 50; ++row) {
      const auto once = decode(kind, encode(kind, random_row(random, row)));
      ASSERT_EQ(decode(kind, encode(kind, once)), once) << name(kind) << " " << row;
    }
  }
}

TEST(Records, ANonFiniteValueSpoilsItsOwnGroupAlone) {
  std::mt19937 random(16);
  const auto clean = random_row(random, 1);
  for (const megamla_kv_format kind : kFormats) {
    const int group = with_record(kind, [](auto record) { return record.kScaleGroup; });
    const auto expected = decode(kind, encode(kind, clean));
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (int position = 0; position < kHeadDim; position += 15) {
        auto x = clean;
        x[static_cast<size_t>(position)] = bad;
        const auto got = decode(kind, encode(kind, x));
        for (int d = 0; d < kHeadDim; ++d) {
          const bool bf16 = kind == MEGAMLA_KV_FP8_584 && position >= kNopeDim;
          if (bf16 ? d == position : d / group == position / group) continue;
          ASSERT_EQ(got[static_cast<size_t>(d)], expected[static_cast<size_t>(d)]) << name(kind) << " " << d;
        }
      }
    }
  }
}

TEST(Records, NonFiniteBytesOfTheFp8Formats) {
  for (const megamla_kv_format kind : {MEGAMLA_KV_FP8_528, MEGAMLA_KV_FP8_584}) {
    const auto group = static_cast<size_t>(with_record(kind, [](auto record) { return record.kScaleGroup; }));
    std::vector<float> x(kHeadDim, 1.75F);
    x[1] = kNan;
    x[group] = -kInfinity;
    x[group + 1] = kNan;
    x[group + 2] = -3.0F;
    const Record record = encode(kind, x);
    EXPECT_EQ(record.scale[0], 127 - 8);  // NaN does not count for the maximum
    EXPECT_EQ(record.data[0], 0x7e);
    EXPECT_EQ(record.data[1], 0xfe);
    EXPECT_EQ(record.scale[1], 0xff);
    EXPECT_EQ(record.data[group], 0xfe);
    EXPECT_EQ(record.data[group + 1], 0xfe);
    EXPECT_EQ(record.data[group + 2], 0x80);
    EXPECT_EQ(record.data[group + 3], 0x00);
  }
}

TEST(Records, OnlyTheRecordsOwnBytesAreWritten) {
  std::mt19937 random(17);
  const auto x = random_row(random, 3);
  for (const megamla_kv_format kind : kFormats) {
    const auto data = static_cast<size_t>(data_bytes(kind));
    const auto scale = static_cast<size_t>(scale_bytes(kind));
    std::vector<uint8_t> memory(64 + data + 64 + scale + 64, 0xa5);
    encode_row(kind, x.data(), &memory[64], &memory[128 + data]);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(memory[i], 0xa5);
      EXPECT_EQ(memory[64 + data + i], 0xa5);
      EXPECT_EQ(memory[128 + data + scale + i], 0xa5);
    }
  }
}

TEST(Casts, OutputGroup) {
  std::mt19937 random(18);
  for (int row = 0; row < 2000; ++row) {
    const auto x = random_row(random, row, kCastGroup);
    uint8_t data[kCastGroup];
    const uint8_t scale = cast_output_group(x.data(), data);
    expect_fp8_group(x.data(), kCastGroup, kAmaxFloor, data, scale);
  }
}

TEST(Casts, Mxfp8Group) {
  std::mt19937 random(19);
  for (int row = 0; row < 2000; ++row) {
    auto x = random_row(random, row, kCastGroup);
    // Down to the subnormals, where the exponent stops at -127.
    const int down = row % 3 == 0 ? -100 - row % 40 : 0;
    for (float& value : x) value = round_to_bf16(std::ldexp(value, down));
    uint8_t data[kCastGroup];
    const uint8_t scale = cast_mxfp8_group(x.data(), data);
    expect_fp8_group(x.data(), kCastGroup, 0, data, scale);
  }
}

// Maxima of 448 * 2^k and one fp32 step beside it, over the whole range of the scale byte.
TEST(Casts, ScaleEdges) {
  for (int k = -22; k <= 119; ++k) {
    const auto edge = static_cast<float>(std::ldexp(448.0, k));
    for (const float amax : {std::nextafterf(edge, 0), edge, std::nextafterf(edge, kInfinity)}) {
      float x[kCastGroup] = {amax / 3, -amax, amax / 1000};
      uint8_t data[kCastGroup];
      const uint8_t output = cast_output_group(x, data);
      EXPECT_EQ(output, k + 127 + (amax > edge ? 1 : 0)) << k;
      expect_fp8_group(x, kCastGroup, kAmaxFloor, data, output);
      EXPECT_EQ(cast_mxfp8_group(x, data), output) << k;
    }
  }
}

TEST(Casts, ZeroGroups) {
  const float zeros[kCastGroup] = {};
  uint8_t data[kCastGroup] = {1, 2, 3};
  EXPECT_EQ(cast_output_group(zeros, data), 105);
  EXPECT_EQ(kZeroGroupScale, 105);
  for (const uint8_t byte : data) EXPECT_EQ(byte, 0);
  data[5] = 7;
  EXPECT_EQ(cast_mxfp8_group(zeros, data), 0);
  for (const uint8_t byte : data) EXPECT_EQ(byte, 0);
}

TEST(Casts, NonFiniteValues) {
  float x[kCastGroup] = {448.0F, kNan, -1.0F};
  uint8_t data[kCastGroup];
  for (const auto cast : {cast_output_group, cast_mxfp8_group}) {
    x[3] = 0;
    EXPECT_EQ(cast(x, data), 127);
    EXPECT_EQ(data[0], 0x7e);
    EXPECT_EQ(data[1], 0x7f);
    EXPECT_EQ(data[2], 0xb8);
    x[3] = -kInfinity;
    EXPECT_EQ(cast(x, data), 120 + 127);  // the exponent of the largest fp32
    EXPECT_EQ(data[1], 0x7f);
    EXPECT_EQ(data[3], 0xfe);
  }
}

}  // namespace
}  // namespace megamla::test
