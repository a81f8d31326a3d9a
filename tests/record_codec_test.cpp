// The CPU's vector codecs against the scalar ones of the format, for every instruction set: random rows of every kind,
// and every value that decides something.
#include "cpu/record_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "format/kv_record.hpp"
#include "plan/insert_rows.hpp"
#include "support/simd_targets.hpp"

namespace megamla::test {
namespace {

constexpr int kDims = format::kHeadDim;

// Row kinds: any bit pattern, one magnitude per row, near group maxima of 448 * 2^k, halves of code steps.
void fill_row(std::mt19937& random, int kind, float* x) {
  std::normal_distribution<float> normal;
  const float scale = std::ldexp(1.0F, static_cast<int>(random() % 60) - 30);
  for (int d = 0; d < kDims; ++d) {
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
struct Bytes {
  uint8_t data[Record::kDataBytes + 8] = {};  // 8: nothing is written behind a row
  uint8_t scale[Record::kScaleBytes + 8] = {};
  bool operator==(const Bytes& other) const { return std::memcmp(this, &other, sizeof(Bytes)) == 0; }
};

// The latent and the row of the table that make kv_insert encode x: the rotated dims are any fp32, the others what of x
// fits into bf16.
struct Source {
  format::Bf16 latent[kDims];
  float cos_sin[format::kRopeDim];
};
Source source_of(const float* x) {
  Source source;
  for (int d = 0; d < kDims; ++d) source.latent[d].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[d]) >> 16);
  for (int j = 0; j < format::kRopeDim / 2; ++j) {
    const int d = format::kNopeDim + 2 * j;
    source.latent[d] = format::to_bf16(1);
    source.latent[d + 1] = format::to_bf16(0);
    source.cos_sin[j] = x[d];
    source.cos_sin[format::kRopeDim / 2 + j] = x[d + 1];
  }
  return source;
}

template <class Record>
Bytes<Record> reference_bytes(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin) {
  float x[kDims];
  plan::rotated_latent(writer, latent, cos_sin, x);
  Bytes<Record> bytes;
  format::encode_row(Record{}, x, bytes.data, bytes.scale);
  return bytes;
}
template <class Record>
Bytes<Record> cpu_bytes(megamla_kv_writer writer, const format::Bf16* latent, const float* cos_sin) {
  Bytes<Record> bytes;
  cpu::insert_record(Record{}, writer, latent, cos_sin, bytes.data, bytes.scale);
  return bytes;
}

template <class Record>
void expect_same_bytes(const float* x, int64_t row) {
  const Source source = source_of(x);
  // What rotating an infinity gives is a NaN of any bits.
  const bool rotates = std::all_of(x + format::kNopeDim, x + kDims, [](float value) { return std::isfinite(value); });
  for (const auto writer : {MEGAMLA_WRITER_WINDOW, MEGAMLA_WRITER_COMPRESSED}) {
    if (!rotates) break;
    ASSERT_TRUE(reference_bytes<Record>(writer, source.latent, source.cos_sin) ==
                cpu_bytes<Record>(writer, source.latent, source.cos_sin))
        << format::name(Record::kFormat) << " row " << row << " writer " << writer;
  }
  format::Bf16 plain[kDims];
  for (int d = 0; d < kDims; ++d) plain[d].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[d]) >> 16);
  ASSERT_TRUE(reference_bytes<Record>(MEGAMLA_WRITER_WINDOW, plain, nullptr) ==
              cpu_bytes<Record>(MEGAMLA_WRITER_WINDOW, plain, nullptr))
      << format::name(Record::kFormat) << " row " << row << " as it is";
}

template <class Record>
void expect_same_values(const uint8_t* data, const uint8_t* scale, int64_t row) {
  float wanted[kDims];
  format::Bf16 got[kDims];
  format::decode_row(Record{}, data, scale, wanted);
  cpu::decode_record(Record{}, data, scale, got);
  for (int d = 0; d < kDims; ++d) {
    const bool nan = std::isnan(wanted[d]) && std::isnan(to_float(got[d]));
    ASSERT_TRUE(nan || got[d].bits == format::to_bf16(wanted[d]).bits)
        << format::name(Record::kFormat) << " row " << row << " dim " << d;
  }
}

template <class F>
void for_each_record(F&& f) {
  f(format::Fp8_528{});
  f(format::Fp8_584{});
  f(format::Nvfp4_288{});
}

// Row after row of the values: each lies in a scale group of its own, of all groups from `first_group`, at a place that
// wanders; all others are `fill`. Every group holds the value `largest` too, unless that is 0.
template <class Record>
void encode_from_group(int first_group, const std::vector<float>& values, float fill, float largest) {
  constexpr int kGroup = Record::kScaleGroup;
  const auto groups = static_cast<size_t>(kDims / kGroup - first_group);
  for (size_t first = 0; first < values.size() && !testing::Test::HasFatalFailure(); first += groups) {
    float x[kDims];
    for (float& value : x) value = fill;
    for (size_t g = 0; g < groups && first + g < values.size(); ++g) {
      float* group = x + (first_group + static_cast<int>(g)) * kGroup;
      if (largest != 0) group[(first + g + 5) % kGroup] = largest;
      group[(first + g) % kGroup] = values[first + g];
    }
    expect_same_bytes<Record>(x, static_cast<int64_t>(first));
  }
}

// Every value in the groups of a row that are bf16, and as it is in those that need not be.
template <class Record>
void encode_one_value_per_group(const std::vector<float>& values, float fill, float largest) {
  encode_from_group<Record>(0, values, fill, largest);
  encode_from_group<Record>(format::kNopeDim / Record::kScaleGroup, values, fill, largest);
}

// x and its neighbours, of both signs.
void add_neighbours(float x, std::vector<float>& values) {
  for (const float value : {std::nextafterf(x, -INFINITY), x, std::nextafterf(x, INFINITY)}) {
    values.push_back(value);
    values.push_back(-value);
  }
}

TEST(RecordCodec, RandomRows) {
  on_every_target([] {
    for_each_record([](auto record) {
      using Record = decltype(record);
      std::mt19937 random(61);
      for (int row = 0; row < 20000 && !testing::Test::HasFatalFailure(); ++row) {
        float x[kDims];
        fill_row(random, row, x);
        expect_same_bytes<Record>(x, row);
        Bytes<Record> bytes;
        for (uint8_t& byte : bytes.data) byte = static_cast<uint8_t>(random());
        for (uint8_t& byte : bytes.scale) byte = static_cast<uint8_t>(random());
        expect_same_values<Record>(bytes.data, bytes.scale, row);
      }
    });
  });
}

TEST(RecordCodec, EveryBf16InAGroup) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) values.push_back(std::bit_cast<float>(bits << 16));
  on_every_target([&] {
    for_each_record([&](auto record) {
      encode_one_value_per_group<decltype(record)>(values, 0.37F, 0);
      encode_one_value_per_group<decltype(record)>(values, 0, 0);
    });
  });
}

// Every e4m3 value and every midpoint between two, with their neighbours, under every exponent of a group.
TEST(RecordCodec, EveryBoundaryOfE4m3) {
  std::vector<float> boundaries;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = format::e4m3_to_float(code);
    const float high = format::e4m3_to_float(static_cast<uint8_t>(code + 1));
    add_neighbours(low, boundaries);
    add_neighbours((low + high) / 2, boundaries);
  }
  add_neighbours(448.0F, boundaries);
  on_every_target([&] {
    for (int exponent = -30; exponent <= 119; exponent = exponent == 10 ? 118 : exponent + 1) {
      std::vector<float> values;
      for (const float value : boundaries) values.push_back(std::ldexp(value, exponent));
      encode_one_value_per_group<format::Fp8_528>(values, 0, std::ldexp(448.0F, exponent));
      encode_one_value_per_group<format::Fp8_584>(values, 0, std::ldexp(448.0F, exponent));
    }
  });
}

// Every midpoint between two e2m1 values times every scale, and its neighbours: the quotient is at, or one step beside,
// the midpoint.
TEST(RecordCodec, EveryBoundaryOfE2m1UnderEveryScale) {
  on_every_target([] {
    for (uint8_t scale = 1; scale < 0x7f; ++scale) {
      const float step = format::e4m3_to_float(scale);
      std::vector<float> values;
      for (uint8_t code = 0; code < 7; ++code) {
        const float low = format::e2m1_to_float(code);
        const float high = format::e2m1_to_float(static_cast<uint8_t>(code + 1));
        add_neighbours(low * step, values);
        add_neighbours((low + high) / 2 * step, values);
      }
      encode_one_value_per_group<format::Nvfp4_288>(values, 0, 6 * step);
      // Largest values that round to this scale from below and from above: up to 6.4 times the scale, or less than 6.
      for (const float largest : {5.75F * step, 5.9F * step, 6.1F * step, 6.3F * step}) {
        encode_one_value_per_group<format::Nvfp4_288>(values, 0, largest);
      }
    }
    encode_one_value_per_group<format::Nvfp4_288>({3000.0F, -3000.0F, 1e30F, -FLT_MAX, 7 * 448.0F, -7 * 448.0F}, 1, 0);
  });
}

// Maxima at every edge between two scales of nvfp4: six times the midpoint between two codes.
TEST(RecordCodec, EveryEdgeOfAnNvfp4Scale) {
  std::vector<float> values;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = format::e4m3_to_float(code);
    const float high = format::e4m3_to_float(static_cast<uint8_t>(code + 1));
    add_neighbours(3 * (low + high), values);
    add_neighbours(6 * low, values);
  }
  on_every_target([&] {
    for (const float fill : {0.0F, 1e-3F}) encode_one_value_per_group<format::Nvfp4_288>(values, fill, 0);
  });
}

// Maxima of 448 * 2^k keep the exponent k, one step above takes the next; 1e-4 is the floor.
TEST(RecordCodec, EveryEdgeOfAGroupExponent) {
  std::vector<float> values;
  for (int k = -149; k <= 119; ++k) add_neighbours(std::ldexp(448.0F, k), values);
  add_neighbours(format::kAmaxFloor, values);
  add_neighbours(FLT_MAX, values);
  on_every_target([&] {
    encode_one_value_per_group<format::Fp8_528>(values, 1e-38F, 0);
    encode_one_value_per_group<format::Fp8_584>(values, 0, 0);
    encode_one_value_per_group<format::Nvfp4_288>(values, 0, 0);
  });
}

// A NaN among a row's codes is a path of its own: every code of both formats, or those that are no e4m3 NaN.
template <class Record>
void expect_every_code_under_every_scale(bool with_nan) {
  for (int scale = 0; scale < 256; ++scale) {
    Bytes<Record> bytes;
    for (size_t i = 0; i < sizeof(bytes.data); ++i) {
      const auto code = static_cast<uint8_t>(i);
      bytes.data[i] = with_nan || (code & 0x7f) != 0x7f ? code : static_cast<uint8_t>(code - 1);
    }
    for (uint8_t& byte : bytes.scale) byte = static_cast<uint8_t>(scale);
    expect_same_values<Record>(bytes.data, bytes.scale, scale);
    // One scale alone, the others ordinary: the path that rounds and the one that does not.
    for (uint8_t& byte : bytes.scale) byte = 0x70;
    bytes.scale[scale % 7] = static_cast<uint8_t>(scale);
    expect_same_values<Record>(bytes.data, bytes.scale, scale);
  }
}

TEST(RecordCodec, EveryCodeUnderEveryScale) {
  on_every_target([] {
    for_each_record([](auto record) {
      expect_every_code_under_every_scale<decltype(record)>(true);
      expect_every_code_under_every_scale<decltype(record)>(false);
    });
  });
}

// The other groups' bytes are those of the row without the bad value.
TEST(RecordCodec, ANonFiniteValueSpoilsItsScaleGroupAlone) {
  on_every_target([] {
    for_each_record([](auto record) {
      using Record = decltype(record);
      constexpr auto writer = MEGAMLA_WRITER_COMPRESSED;
      constexpr int kGroup = Record::kScaleGroup;
      constexpr int kGroupBytes = kGroup * (Record::kDataBytes < kDims ? 1 : 2) / 2;
      std::mt19937 random(63);
      float x[kDims];
      fill_row(random, 1, x);
      for (int d = 0; d < format::kNopeDim; ++d) {
        for (const float bad : {std::nanf(""), -std::nanf(""), INFINITY, -INFINITY}) {
          const float good = x[d];
          const Source good_source = source_of(x);
          Bytes<Record> wanted = reference_bytes<Record>(writer, good_source.latent, good_source.cos_sin);
          x[d] = bad;
          expect_same_bytes<Record>(x, d);
          const Source source = source_of(x);
          const auto got = cpu_bytes<Record>(writer, source.latent, source.cos_sin);
          x[d] = good;
          const int group = d / kGroup;
          std::memcpy(wanted.data + group * kGroupBytes, got.data + group * kGroupBytes, kGroupBytes);
          wanted.scale[group] = got.scale[group];
          ASSERT_TRUE(wanted == got) << format::name(Record::kFormat) << " dim " << d << " = " << bad;
        }
      }
    });
  });
}

TEST(RecordCodec, RotatesTheSameRows) {
  on_every_target([] {
    for_each_record([](auto record) {
      using Record = decltype(record);
      std::mt19937 random(64);
      std::normal_distribution<float> normal;
      for (int row = 0; row < 10000; ++row) {
        format::Bf16 latent[kDims];
        float cos_sin[format::kRopeDim];
        for (format::Bf16& value : latent) value = format::to_bf16(normal(random));
        for (float& value : cos_sin) value = normal(random);
        for (const auto writer : {MEGAMLA_WRITER_WINDOW, MEGAMLA_WRITER_COMPRESSED}) {
          ASSERT_TRUE(reference_bytes<Record>(writer, latent, cos_sin) == cpu_bytes<Record>(writer, latent, cos_sin))
              << format::name(Record::kFormat) << " row " << row;
        }
      }
    });
  });
}

}  // namespace
}  // namespace megamla::test
