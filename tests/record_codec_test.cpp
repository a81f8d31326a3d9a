// The CPU's vector codecs against the scalar ones of the format, on every kind of value.
#include "cpu/record_codec.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "format/kv_record.hpp"

namespace megamla::test {
namespace {

// Row kinds: any bit pattern, one magnitude per row, near group maxima of 448 * 2^k, halves of code steps.
void fill_row(std::mt19937& random, int kind, float* x) {
  std::normal_distribution<float> normal;
  const float scale = std::ldexp(1.0F, static_cast<int>(random() % 60) - 30);
  for (int d = 0; d < 512; ++d) {
    switch (kind % 4) {
      case 0:
        x[d] = std::bit_cast<float>(static_cast<uint32_t>(random()));
        break;
      case 1:
        x[d] = normal(random) * scale;
        break;
      case 2:
        x[d] = normal(random);
        if (random() % 40 == 0) {
          const auto steps = static_cast<uint32_t>(random() % 5);
          x[d] = std::bit_cast<float>(std::bit_cast<uint32_t>(448.0F * scale) + steps - 2);
        }
        break;
      default:
        x[d] = static_cast<float>(static_cast<int>(random() % 4097) - 2048) * std::ldexp(scale, -5);
    }
  }
}

template <class Record>
void expect_same_bytes(Record record) {
  std::mt19937 random(61);
  for (int row = 0; row < 20000; ++row) {
    float x[512];
    fill_row(random, row, x);
    uint8_t wanted[2][608] = {};
    uint8_t got[2][608] = {};
    format::encode_row(record, x, wanted[0], wanted[1]);
    cpu::encode_record(record, x, got[0], got[1]);
    ASSERT_EQ(std::memcmp(wanted, got, sizeof(wanted)), 0) << format::name(Record::kFormat) << " row " << row;
  }
}

template <class Record>
void expect_same_values(Record record) {
  std::mt19937 random(62);
  for (int row = 0; row < 20000; ++row) {
    uint8_t data[Record::kDataBytes];
    uint8_t scale[Record::kScaleBytes];
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : scale) byte = static_cast<uint8_t>(random());
    float wanted[512];
    format::Bf16 got[512];
    format::decode_row(record, data, scale, wanted);
    cpu::decode_record(record, data, scale, got);
    for (int d = 0; d < 512; ++d) {
      const bool nan = std::isnan(wanted[d]) && std::isnan(to_float(got[d]));
      ASSERT_TRUE(nan || got[d].bits == format::to_bf16(wanted[d]).bits)
          << format::name(Record::kFormat) << " row " << row << " dim " << d;
    }
  }
}

TEST(RecordCodec, EncodesTheSameBytes) {
  expect_same_bytes(format::Fp8_528{});
  expect_same_bytes(format::Fp8_584{});
  expect_same_bytes(format::Nvfp4_288{});
}

TEST(RecordCodec, DecodesTheSameValues) {
  expect_same_values(format::Fp8_528{});
  expect_same_values(format::Fp8_584{});
  expect_same_values(format::Nvfp4_288{});
}

}  // namespace
}  // namespace megamla::test
