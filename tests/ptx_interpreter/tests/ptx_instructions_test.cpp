// Instructions against the same arithmetic in C++, control flow against what each lane would do alone.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "ptx_interpreter/numbers.hpp"
#include "ptx_interpreter/tests/ptx_kernel.hpp"

namespace ptx::test {
namespace {

// Runs `code` on 32 lanes with inputs in %r1, %r2, %r3; its result is in %r4.
std::vector<uint32_t> results(const std::string& code, const std::vector<uint32_t>& inputs, uint64_t seed = 0) {
  const Device<uint32_t> in(inputs);
  const Device<uint32_t> out(32);
  std::string body =
      "mul.wide.u32 %d3, %r0, 4;\nadd.s64 %d4, %d1, %d3;\nmul.wide.u32 %d3, %r0, 12;\nadd.s64 %d5, %d0, %d3;\n";
  body += "ld.global.u32 %r1, [%d5];\nld.global.u32 %r2, [%d5+4];\nld.global.u32 %r3, [%d5+8];\n";
  EXPECT_EQ(run_body(body + code + "\nst.global.u32 [%d4], %r4;", {}, {in, out}, seed), "") << code;
  return out.values();
}

// Values of every size, with small ones, ones in common and extreme ones among them.
std::vector<uint32_t> some_inputs() {
  std::mt19937 random(5);
  std::vector<uint32_t> v(96);
  for (uint32_t& x : v) x = static_cast<uint32_t>(random()) >> random() % 32;
  constexpr uint32_t kEdges[] = {0, 1, 0xffffffff, 0x80000000, 0x7fffffff, 0x7fc00000, 0x3f800000, 31, 32, 33};
  std::copy(std::begin(kEdges), std::end(kEdges), v.begin());
  return v;
}

void expect_like(const std::string& code, const std::function<uint32_t(uint32_t, uint32_t, uint32_t)>& same) {
  const std::vector<uint32_t> in = some_inputs();
  const std::vector<uint32_t> got = results(code, in);
  for (size_t i = 0; i < 32; ++i) {
    const uint32_t a = in[3 * i];
    const uint32_t b = in[3 * i + 1];
    const uint32_t c = in[3 * i + 2];
    EXPECT_EQ(got[i], same(a, b, c)) << code << std::hex << " of " << a << " " << b << " " << c;
  }
}

float f(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits(float v) { return std::isnan(v) ? kNanF32 : std::bit_cast<uint32_t>(v); }
int32_t s(uint32_t v) { return static_cast<int32_t>(v); }

TEST(PtxInstructions, Integers) {
  using U = uint32_t;
  expect_like("add.s32 %r4, %r1, %r2;", [](U a, U b, U) { return a + b; });
  expect_like("mad.lo.s32 %r4, %r1, %r2, %r3;", [](U a, U b, U c) { return a * b + c; });
  expect_like("mul.hi.u32 %r4, %r1, %r2;", [](U a, U b, U) { return static_cast<U>(uint64_t{a} * b >> 32); });
  expect_like("mul.hi.s32 %r4, %r1, %r2;", [](U a, U b, U) { return static_cast<U>(int64_t{s(a)} * s(b) >> 32); });
  expect_like("div.u32 %r4, %r1, %r2;", [](U a, U b, U) { return b == 0 ? ~0U : a / b; });
  expect_like("rem.s32 %r4, %r1, 7;", [](U a, U, U) { return static_cast<U>(s(a) % 7); });
  expect_like("min.s32 %r4, %r1, %r2;", [](U a, U b, U) { return static_cast<U>(std::min(s(a), s(b))); });
  expect_like("shr.s32 %r4, %r1, %r2;", [](U a, U b, U) { return static_cast<U>(s(a) >> std::min(b, 31U)); });
  expect_like("shl.b32 %r4, %r1, %r2;", [](U a, U b, U) { return b > 31 ? 0 : a << b; });
  expect_like("shf.l.wrap.b32 %r4, %r1, %r2, %r3;",
              [](U a, U b, U c) { return (c & 31) == 0 ? b : b << (c & 31) | a >> (32 - (c & 31)); });
  expect_like("lop3.b32 %r4, %r1, %r2, %r3, 0xe8;", [](U a, U b, U c) { return (a & b) | (a & c) | (b & c); });
  expect_like("prmt.b32 %r4, %r1, %r2, 0x9173;", [](U a, U b, U) {
    const auto sign = static_cast<U>(s(a << 16) >> 31);
    return (a >> 24) | (b >> 24) << 8 | (a >> 8 & 0xff) << 16 | (sign & 0xff) << 24;
  });
  expect_like("bfe.s32 %r4, %r1, 5, 11;", [](U a, U, U) { return static_cast<U>(s(a << 16) >> 21); });
  expect_like("bfi.b32 %r4, %r1, %r2, 7, 9;", [](U a, U b, U) { return (b & ~(511U << 7)) | (a & 511) << 7; });
  expect_like("popc.b32 %r4, %r1;", [](U a, U, U) { return static_cast<U>(std::popcount(a)); });
  expect_like("bfind.u32 %r4, %r1;", [](U a, U, U) { return static_cast<U>(31 - std::countl_zero(a)); });
  // 64 bits by way of the carry.
  expect_like("add.cc.u32 %r5, %r1, %r2;\naddc.u32 %r4, %r3, 0;",
              [](U a, U b, U c) { return c + static_cast<U>((uint64_t{a} + b) >> 32); });
}

TEST(PtxInstructions, Floats) {
  using U = uint32_t;
  const std::string move = "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n";
  const auto expect = [&](const std::string& code, const std::function<uint32_t(float, float, float)>& same) {
    expect_like(move + code, [&](U a, U b, U c) { return same(f(a), f(b), f(c)); });
  };
  const std::string back = "\nmov.b32 %r4, %f4;";
  expect("add.f32 %f4, %f1, %f2;" + back, [](float a, float b, float) { return bits(a + b); });
  expect("fma.rn.f32 %f4, %f1, %f2, %f3;" + back, [](float a, float b, float c) { return bits(std::fma(a, b, c)); });
  expect("max.f32 %f4, %f1, %f2;" + back, [](float a, float b, float) { return bits(std::fmax(a, b)); });
  expect("setp.gtu.f32 %p1, %f1, %f2;\nselp.u32 %r4, 1, 0, %p1;",
         [](float a, float b, float) { return a <= b ? 0U : 1U; });
  expect("cvt.rzi.s32.f32 %r4, %f1;", [](float a, float, float) {
    if (std::isnan(a)) return 0U;
    return a >= 0x1p31F ? 0x7fffffffU : a <= -0x1p31F ? 0x80000000U : static_cast<U>(static_cast<int32_t>(a));
  });
  expect("cvt.rn.f32.u32 %f4, %r1;" + back,
         [](float a, float, float) { return bits(static_cast<float>(std::bit_cast<uint32_t>(a))); });
  expect("cvt.f64.f32 %e1, %f1;\ncvt.rn.f32.f64 %f4, %e1;" + back,
         [](float a, float, float) { return std::isnan(a) ? std::bit_cast<uint32_t>(a) : bits(a); });
}

// Every pair of halves of the inputs; sums and products of bf16 are exact in double.
uint32_t nearest_bf16(double exact) {
  if (std::isnan(exact)) return 0x7fff;
  if (std::isinf(exact) || exact == 0) return float_to_bf16(static_cast<float>(exact));
  const int exponent = std::max(std::ilogb(exact), -126);
  const double unit = std::ldexp(1.0, exponent - 7);
  return float_to_bf16(static_cast<float>(std::nearbyint(exact / unit) * unit));
}

TEST(PtxInstructions, Bf16PairsRoundOnce) {
  const auto expect = [](const std::string& code, const std::function<double(double, double, double)>& exact) {
    expect_like(code, [&](uint32_t a, uint32_t b, uint32_t c) {
      const auto half = [&](int shift) {
        const auto get = [&](uint32_t v) { return static_cast<double>(bf16_to_float(v >> shift & 0xffff)); };
        return nearest_bf16(exact(get(a), get(b), get(c)));
      };
      return half(0) | half(16) << 16;
    });
  };
  expect("mul.rn.bf16x2 %r4, %r1, %r2;", [](double a, double b, double) { return a * b; });
  expect("add.rn.bf16x2 %r4, %r1, %r2;", [](double a, double b, double) { return a + b; });
  expect("fma.rn.bf16x2 %r4, %r1, %r2, %r3;", [](double a, double b, double c) { return std::fma(a, b, c); });
}

TEST(PtxInstructions, NarrowFormatsHaveEveryCodeBack) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) {
      EXPECT_EQ(float_to_e4m3(e4m3_to_float(code)), code);
    }
    if ((code & 0x7f) < 0x7c) {
      EXPECT_EQ(float_to_e5m2(e5m2_to_float(code)), code);
    }
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    if ((code & 0x7fff) <= 0x7c00) {
      EXPECT_EQ(float_to_f16(f16_to_float(code)), code);
    }
    if ((code & 0x7fff) <= 0x7f80) {
      EXPECT_EQ(float_to_bf16(bf16_to_float(code)), code);
    }
  }
  // Halfway goes to the even code; what is too large stays at the largest.
  EXPECT_EQ(float_to_e4m3(1.0625F), 0x38U);
  EXPECT_EQ(float_to_e4m3(1.1875F), 0x3aU);
  EXPECT_EQ(float_to_e4m3(0x1p-10F), 0U);
  EXPECT_EQ(float_to_e4m3(0x1.8p-9F), 2U);
  EXPECT_EQ(float_to_e4m3(1e9F), 0x7eU);
  EXPECT_EQ(float_to_e4m3(-1e9F), 0xfeU);
}

// Loops of another length in each lane, nested branches, and a call in the midst of it.
TEST(PtxInstructions, LanesThatPartAndMeetAgain) {
  const std::string code = R"(
    and.b32 %r5, %r1, 15;
    mov.u32 %r4, 0;
    mov.u32 %r6, 0;
  LOOP:
    setp.ge.u32 %p1, %r6, %r5;
    @%p1 bra DONE;
    and.b32 %r7, %r6, 1;
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra EVEN;
    mad.lo.u32 %r4, %r4, 3, %r2;
    bra NEXT;
  EVEN:
    xor.b32 %r4, %r4, %r3;
  NEXT:
    add.u32 %r6, %r6, 1;
    bra LOOP;
  DONE:
    vote.sync.ballot.b32 %r8, 1, 0xffffffff;
    xor.b32 %r4, %r4, %r8;
  )";
  const std::vector<uint32_t> in = some_inputs();
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const std::vector<uint32_t> got = results(code, in, seed);
    for (size_t i = 0; i < 32; ++i) {
      uint32_t v = 0;
      for (uint32_t k = 0; k < (in[3 * i] & 15); ++k) v = k % 2 == 0 ? v ^ in[3 * i + 2] : v * 3 + in[3 * i + 1];
      EXPECT_EQ(got[i], ~v) << i;
    }
  }
}

TEST(PtxInstructions, Calls) {
  const Device<uint32_t> out(32);
  const std::string text = R"(
    .version 9.0
    .target sm_90a
    .address_size 64
    .func (.param .b32 result) twice(.param .b32 x)
    {
      .reg .b32 %r<3>;
      .reg .pred %p<2>;
      ld.param.b32 %r1, [x];
      setp.gt.u32 %p1, %r1, 9;
      @%p1 bra BIG;
      shl.b32 %r1, %r1, 1;
    BIG:
      st.param.b32 [result], %r1;
      ret;
    }
    .visible .entry kernel(.param .u64 p0)
    {
      .reg .b32 %r<4>;
      .reg .b64 %d<4>;
      .reg .pred %p<2>;
      ld.param.u64 %d0, [p0];
      mov.u32 %r0, %tid.x;
      mul.wide.u32 %d1, %r0, 4;
      add.s64 %d2, %d0, %d1;
      mov.u32 %r2, 77;
      setp.eq.u32 %p1, %r0, 3;
      @%p1 bra SKIP;
      {
      .param .b32 a;
      .param .b32 b;
      st.param.b32 [a], %r0;
      call.uni (b), twice, (a);
      ld.param.b32 %r2, [b];
      }
    SKIP:
      st.global.u32 [%d2], %r2;
      ret;
    }
  )";
  EXPECT_EQ(run_text(text, {}, {out}), "");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out.values()[i], i == 3 ? 77 : i > 9 ? i : 2 * i);
}

TEST(PtxInstructions, WarpsExchange) {
  const std::vector<uint32_t> in = some_inputs();
  const auto at = [&](size_t i) { return in[3 * i]; };
  const auto down = results("shfl.sync.down.b32 %r4, %r1, 3, 31, 0xffffffff;", in);
  const auto cross = results("shfl.sync.bfly.b32 %r4, %r1, 5, 31, 0xffffffff;", in);
  const auto eights = results("shfl.sync.idx.b32 %r4, %r1, 2, 0x181f, 0xffffffff;", in);
  const auto sum = results("redux.sync.add.s32 %r4, %r1, 0xffffffff;", in);
  uint32_t total = 0;
  for (size_t i = 0; i < 32; ++i) total += at(i);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(down[i], at(i + 3 < 32 ? i + 3 : i));
    EXPECT_EQ(cross[i], at(i ^ 5));
    EXPECT_EQ(eights[i], at(i / 8 * 8 + 2));
    EXPECT_EQ(sum[i], total);
  }
}

}  // namespace
}  // namespace ptx::test
