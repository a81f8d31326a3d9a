// permute_weights: each kind against the index formula of the contract, undone again, and composed with another.
#include "megamla/permute_weights.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "support/bad_input.hpp"
#include "support/tensor_buffer.hpp"

namespace megamla::test {
namespace {

constexpr megamla_tensor kAbsent = {nullptr, 0, 0, -1, 0, {}, {}};

void fill_random(const TensorBuffer& buffer, std::mt19937& random) {
  const auto& t = buffer.view();
  int64_t bytes = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  for (int d = 0; d < t.ndim; ++d) bytes *= t.shape[d];
  for (int64_t i = 0; i < bytes; ++i) buffer.as<uint8_t>()[i] = static_cast<uint8_t>(random());
}

megamla_permute_weights_params params_of(megamla_permute_kind kind, const megamla_tensor& in,
                                         const megamla_tensor& out) {
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = kind;
  p.in = in;
  p.out = out;
  return p;
}

void run(const megamla_permute_weights_params& p, megamla_device device, int threads = 3) {
  const megamla_exec exec = exec_on(device, threads);
  ASSERT_EQ(megamla_permute_weights(&p, &exec), MEGAMLA_OK) << megamla_last_error();
}

// out[row][to(i)] = in[row][i] for every i, and every out element is some in element: a permutation.
void expect_permuted(const TensorBuffer& in, const TensorBuffer& out, int64_t rows, int64_t width,
                     const std::function<int64_t(int64_t)>& to) {
  const auto size = static_cast<size_t>(megamla_dtype_size(static_cast<megamla_dtype>(in.view().dtype)));
  std::vector<bool> reached(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    ASSERT_FALSE(reached[static_cast<size_t>(to(i))]) << i;
    reached[static_cast<size_t>(to(i))] = true;
    for (int64_t row = 0; row < rows; ++row) {
      const auto* from = in.as<uint8_t>() + static_cast<size_t>(row * width + i) * size;
      const auto* there = out.as<uint8_t>() + static_cast<size_t>(row * width + to(i)) * size;
      ASSERT_EQ(std::memcmp(from, there, size), 0) << "row " << row << " element " << i;
    }
  }
  EXPECT_TRUE(out.guards_intact());
}

TEST(PermuteWeights, ElementsOfEverySize) {
  std::mt19937 random(41);
  for (const megamla_dtype dtype : {MEGAMLA_U8, MEGAMLA_BF16, MEGAMLA_F32, MEGAMLA_I64, MEGAMLA_F8_E8M0}) {
    for (const megamla_device device : kDevices) {
      SCOPED_TRACE(std::string(device_name(device)) + " " + megamla_dtype_name(dtype));
      const int64_t rows = static_cast<int64_t>(random() % 4);
      const int64_t heads = 1 + static_cast<int64_t>(random() % 70);
      TensorBuffer q(dtype, {rows, heads, 512});
      TensorBuffer q_out(dtype, {rows, heads, 512});
      fill_random(q, random);
      run(params_of(MEGAMLA_PERMUTE_Q, q, q_out), device);
      expect_permuted(q, q_out, rows, heads * 512,
                      [&](int64_t i) { return i % 512 / 16 * (heads * 16) + i / 512 * 16 + i % 16; });
      const int64_t groups = 1 + static_cast<int64_t>(random() % 3);
      TensorBuffer o(dtype, {rows, groups, 4096});
      TensorBuffer o_out(dtype, {rows, groups, 4096});
      fill_random(o, random);
      run(params_of(MEGAMLA_PERMUTE_O, o, o_out), device);
      expect_permuted(o, o_out, rows * groups, 4096,
                      [](int64_t i) { return (i % 512 / 32 * 8 + i / 512) * 32 + i % 32; });
      TensorBuffer chunks(dtype, {rows, groups, 128});
      TensorBuffer chunks_out(dtype, {rows, groups, 128});
      fill_random(chunks, random);
      run(params_of(MEGAMLA_PERMUTE_O_CHUNKS, chunks, chunks_out), device);
      expect_permuted(chunks, chunks_out, rows * groups, 128, [](int64_t i) { return i % 16 * 8 + i / 16; });
    }
  }
}

// Padding chunked heads is permuting standard heads with zero heads behind them.
TEST(PermuteWeights, PaddingCommutesWithPermuting) {
  std::mt19937 random(42);
  for (const megamla_device device : kDevices) {
    for (const auto& [local, padded] : {std::pair<int64_t, int64_t>{8, 8}, {8, 64}, {16, 128}, {0, 8}, {3, 5}}) {
      SCOPED_TRACE(std::string(device_name(device)) + " " + std::to_string(local) + " to " + std::to_string(padded));
      TensorBuffer q(MEGAMLA_BF16, {3, local, 512});
      TensorBuffer chunked(MEGAMLA_BF16, {3, local, 512});
      TensorBuffer got(MEGAMLA_BF16, {3, padded, 512});
      TensorBuffer with_zeros(MEGAMLA_BF16, {3, padded, 512});
      TensorBuffer wanted(MEGAMLA_BF16, {3, padded, 512});
      fill_random(q, random);
      with_zeros.fill<uint16_t>(0);
      for (int64_t t = 0; t < 3 && local > 0; ++t) {
        std::memcpy(&with_zeros.at<uint16_t>(t, 0), &q.at<uint16_t>(t, 0), static_cast<size_t>(local) * 1024);
      }
      run(params_of(MEGAMLA_PERMUTE_Q, q, chunked), device);
      run(params_of(MEGAMLA_PERMUTE_PAD_Q, chunked, got), device);
      run(params_of(MEGAMLA_PERMUTE_Q, with_zeros, wanted), device);
      EXPECT_TRUE(got.values<uint16_t>() == wanted.values<uint16_t>());
      EXPECT_TRUE(got.guards_intact());
    }
  }
}

struct Weights {
  TensorBuffer in, in_scale, out, out_scale, packed;
  megamla_permute_weights_params params;

  Weights(megamla_permute_kind kind, std::initializer_list<int64_t> in_shape,
          std::initializer_list<int64_t> scale_shape, std::initializer_list<int64_t> out_shape,
          std::initializer_list<int64_t> out_scale_shape, std::initializer_list<int64_t> packed_shape,
          std::mt19937& random)
      : in(MEGAMLA_F8_E4M3, in_shape),
        in_scale(MEGAMLA_F8_E8M0, scale_shape),
        out(MEGAMLA_F8_E4M3, out_shape),
        out_scale(MEGAMLA_F8_E8M0, out_scale_shape),
        packed(MEGAMLA_I32, packed_shape) {
    fill_random(in, random);
    fill_random(in_scale, random);
    params = params_of(kind, in, out);
    params.in_scale = in_scale;
    params.out_scale = out_scale;
    params.out_scale_packed = packed;
  }
  void run_on(megamla_device device) {
    out.refill();
    out_scale.refill();
    packed.refill();
    run(params, device);
    EXPECT_TRUE(out.guards_intact() && out_scale.guards_intact() && packed.guards_intact());
  }
};

Weights wq_b(int64_t heads, int64_t r, std::mt19937& random) {
  return {MEGAMLA_PERMUTE_WQ_B,
          {heads * 512, r},
          {heads * 16, r / 32},
          {heads * 512, r},
          {heads * 512, r / 32},
          {(r + 127) / 128, heads * 512},
          random};
}
Weights wo_a(int64_t groups, int64_t d, std::mt19937& random) {
  return {MEGAMLA_PERMUTE_WO_A,
          {groups * d, 4096},
          {groups * d / 32, 128},
          {groups, d, 4096},
          {groups, d, 128},
          {groups, 32, d},
          random};
}

TEST(PermuteWeights, WqBRowsAndTheirScales) {
  std::mt19937 random(43);
  for (const auto& [heads, r] : {std::pair<int64_t, int64_t>{8, 64}, {16, 32}, {8, 160}, {1, 96}}) {
    Weights w = wq_b(heads, r, random);
    for (const megamla_device device : kDevices) {
      w.run_on(device);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < 512; ++d) {
          const int64_t row = h * 512 + d;
          const int64_t to = d / 16 * (heads * 16) + h * 16 + d % 16;
          ASSERT_EQ(std::memcmp(&w.out.at<uint8_t>(to, 0), &w.in.at<uint8_t>(row, 0), static_cast<size_t>(r)), 0);
          for (int64_t k = 0; k < (r + 127) / 128 * 4; ++k) {
            const uint8_t wanted = k < r / 32 ? w.in_scale.at<uint8_t>(row / 32, k) : 0;
            if (k < r / 32) {
              ASSERT_EQ(w.out_scale.at<uint8_t>(to, k), wanted);
            }
            ASSERT_EQ(static_cast<uint8_t>(w.packed.at<uint32_t>(k / 4, to) >> (8 * (k % 4))), wanted)
                << to << " " << k;
          }
        }
      }
    }
  }
}

TEST(PermuteWeights, WoAColumnsAndTheirScales) {
  std::mt19937 random(44);
  for (const auto& [groups, d] : {std::pair<int64_t, int64_t>{1, 32}, {2, 64}, {3, 32}}) {
    Weights w = wo_a(groups, d, random);
    for (const megamla_device device : kDevices) {
      w.run_on(device);
      for (int64_t row = 0; row < groups * d; ++row) {
        for (int64_t column = 0; column < 4096; ++column) {
          const int64_t chunk = column % 512 / 32 * 8 + column / 512;
          ASSERT_EQ(w.out.at<uint8_t>(row / d, row % d, chunk * 32 + column % 32), w.in.at<uint8_t>(row, column));
          const uint8_t scale = w.in_scale.at<uint8_t>(row / 32, column / 32);
          ASSERT_EQ(w.out_scale.at<uint8_t>(row / d, row % d, chunk), scale);
          const uint32_t word = w.packed.at<uint32_t>(row / d, chunk / 4, row % d);
          ASSERT_EQ(static_cast<uint8_t>(word >> (8 * (chunk % 4))), scale);
        }
      }
    }
  }
}

TEST(PermuteWeights, PackedScalesMayBeLeftOut) {
  std::mt19937 random(45);
  Weights w = wq_b(8, 64, random);
  w.run_on(MEGAMLA_DEVICE_REFERENCE);
  const std::vector<uint8_t> wanted = w.out_scale.bytes();
  w.params.out_scale_packed = kAbsent;
  for (const megamla_device device : kDevices) {
    w.run_on(device);
    EXPECT_TRUE(w.out_scale.bytes() == wanted);
    EXPECT_EQ(w.packed.at<uint32_t>(0, 0), 0xa5a5a5a5U);
  }
}

TEST(PermuteWeights, NothingToPermute) {
  std::mt19937 random(46);
  for (const megamla_device device : kDevices) {
    for (const megamla_permute_kind kind : {MEGAMLA_PERMUTE_Q, MEGAMLA_PERMUTE_PAD_Q}) {
      TensorBuffer none(MEGAMLA_BF16, {0, 8, 512});
      TensorBuffer out(MEGAMLA_BF16, {0, 8, 512});
      run(params_of(kind, none, out), device);
    }
    Weights no_heads = wq_b(0, 64, random);
    no_heads.run_on(device);
    Weights no_columns = wq_b(8, 0, random);
    no_columns.run_on(device);
    Weights no_groups = wo_a(0, 32, random);
    no_groups.run_on(device);
  }
}

using P = megamla_permute_weights_params;

TEST(PermuteWeights, BadArgumentsOfElementKinds) {
  std::mt19937 random(47);
  TensorBuffer in(MEGAMLA_BF16, {2, 8, 512});
  TensorBuffer out(MEGAMLA_BF16, {2, 8, 512});
  fill_random(in, random);
  for (const megamla_permute_kind kind : {MEGAMLA_PERMUTE_Q, MEGAMLA_PERMUTE_PAD_Q}) {
    BadInput<P> bad("permute_weights", megamla_permute_weights, params_of(kind, in, out), {&out});
    bad.tensor("in", &P::in, true, 0);
    bad.tensor("out", &P::out, true, 0);
    bad.output("out", &P::out, {&P::in});
    bad.expect("in", "rows of 256", [](P& p) { p.in.shape[2] = 256; });
    bad.expect("out", "another dtype", [](P& p) { p.out.dtype = MEGAMLA_I32; });
    bad.expect("out", "fewer heads", [](P& p) { p.out.shape[1] = 7; });
    bad.expect("out", "fewer rows", [](P& p) { p.out.shape[0] = 1; });
    bad.expect("in_scale", "scales where there are none", [](P& p) { p.in_scale = p.in; });
    bad.expect("out_scale", "scales where there are none", [](P& p) { p.out_scale = p.in; });
    bad.expect("out_scale_packed", "scales where there are none", [](P& p) { p.out_scale_packed = p.in; });
    bad.expect("kind", "6", [](P& p) { p.kind = 6; });
    bad.expect("kind", "-1", [](P& p) { p.kind = -1; });
    bad.expect("reserved", "1", [](P& p) { p.reserved = 1; });
    bad.expect("in", "the wrong kind for its shape", [](P& p) { p.kind = MEGAMLA_PERMUTE_O; });
    bad.expect("in", "the wrong kind for its shape", [](P& p) { p.kind = MEGAMLA_PERMUTE_O_CHUNKS; });
  }
}

void expect_bad_weights(Weights& w) {
  BadInput<P> bad("permute_weights", megamla_permute_weights, w.params, {&w.out, &w.out_scale, &w.packed});
  bad.tensor("in", &P::in, true, 0);
  bad.tensor("in_scale", &P::in_scale, true, 0);
  bad.tensor("out", &P::out, true, 0);
  bad.tensor("out_scale", &P::out_scale, true, 0);
  bad.tensor("out_scale_packed", &P::out_scale_packed, false, 0);
  bad.output("out", &P::out, {&P::in, &P::in_scale, &P::out_scale, &P::out_scale_packed});
  bad.output("out_scale", &P::out_scale, {&P::in, &P::in_scale, &P::out_scale_packed});
  bad.output("out_scale_packed", &P::out_scale_packed, {&P::in, &P::in_scale});
  for (const auto& [name, field] : {std::pair<const char*, megamla_tensor P::*>{"in_scale", &P::in_scale},
                                    {"out_scale", &P::out_scale},
                                    {"out_scale_packed", &P::out_scale_packed}}) {
    bad.expect(name, "a column more", [f = field](P& p) { ++(p.*f).shape[(p.*f).ndim - 1]; });
    bad.expect(name, "a row less", [f = field](P& p) { --(p.*f).shape[0]; });
  }
  bad.expect("", "a row less", [](P& p) { --p.in.shape[0]; });
  bad.expect("", "a column less", [](P& p) { --p.in.shape[1]; });
  bad.expect("out", "a row less", [](P& p) { --p.out.shape[0]; });
}

TEST(PermuteWeights, BadArgumentsOfWeightKinds) {
  std::mt19937 random(48);
  Weights q = wq_b(8, 64, random);
  expect_bad_weights(q);
  Weights o = wo_a(2, 32, random);
  expect_bad_weights(o);
}

}  // namespace
}  // namespace megamla::test
