// mma, wgmma and ldmatrix against plain loops over matrices of small integers, whose sums are exact.
#include <gtest/gtest.h>

#include <random>

#include "ptx_interpreter/numbers.hpp"
#include "ptx_interpreter/tests/ptx_kernel.hpp"

namespace ptx::test {
namespace {

struct Matrix {
  int rows, columns;
  std::vector<float> v;
  Matrix(int r, int c) : rows(r), columns(c), v(static_cast<size_t>(r * c)) {}
  float& at(int r, int c) { return v[static_cast<size_t>(r * columns + c)]; }
  static Matrix drawn(int r, int c, uint32_t seed) {
    Matrix m(r, c);
    std::mt19937 random(seed);
    for (float& x : m.v) x = static_cast<float>(static_cast<int>(random() % 17) - 8);
    return m;
  }
};

Matrix product(Matrix a, Matrix b) {  // a b^T
  Matrix d(a.rows, b.rows);
  for (int i = 0; i < a.rows; ++i) {
    for (int j = 0; j < b.rows; ++j) {
      for (int k = 0; k < a.columns; ++k) d.at(i, j) += a.at(i, k) * b.at(j, k);
    }
  }
  return d;
}

// d of an instruction of a warp whose fragments are asked of `lane_a` and `lane_b`: register r of lane l.
using Fragment = std::function<uint32_t(int lane, int r)>;
std::vector<float> run_mma(const std::string& name, int b_registers, const Fragment& a, const Fragment& b) {
  std::vector<uint32_t> in(32 * 6);
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) in[static_cast<size_t>(lane * 6 + r)] = a(lane, r);
    for (int r = 0; r < b_registers; ++r) in[static_cast<size_t>(lane * 6 + 4 + r)] = b(lane, r);
  }
  const Device<uint32_t> from(in);
  const Device<float> to(128);
  std::string body =
      "mul.wide.u32 %d2, %r0, 24;\nadd.s64 %d3, %d0, %d2;\nmul.wide.u32 %d4, %r0, 16;\nadd.s64 %d5, %d1, %d4;\n";
  for (int i = 0; i < 6; ++i) body += fmt::format("ld.global.u32 %r{}, [%d3+{}];\n", i + 1, 4 * i);
  body += "mov.f32 %f5, 0f3F800000;\n";  // every sum begins at 1
  body += name + " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f5, %f5, %f5, %f5};\n";
  EXPECT_EQ(run_body(body + "st.global.v4.f32 [%d5], {%f1, %f2, %f3, %f4};", {}, {from, to}), "");
  return to.values();
}

void expect_mma(const std::string& name, int depth, int per_register, const std::function<uint32_t(float)>& code) {
  Matrix a = Matrix::drawn(16, depth, 1);
  Matrix b = Matrix::drawn(8, depth, 2);
  const auto pack = [&](Matrix& m, int row, int k) {
    uint32_t word = 0;
    for (int i = 0; i < per_register; ++i) word |= code(m.at(row, k + i)) << (32 / per_register * i);
    return word;
  };
  const auto got = run_mma(
      name, 2, [&](int l, int r) { return pack(a, l / 4 + r % 2 * 8, l % 4 * per_register + r / 2 * depth / 2); },
      [&](int l, int r) { return pack(b, l / 4, l % 4 * per_register + r * depth / 2); });
  Matrix d = product(a, b);
  for (int l = 0; l < 32; ++l) {
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(got[static_cast<size_t>(l * 4 + r)], 1 + d.at(l / 4 + r / 2 * 8, l % 4 * 2 + r % 2)) << l << " " << r;
    }
  }
}

TEST(PtxMatrix, Mma) {
  expect_mma("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, 2, float_to_bf16);
  expect_mma("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 2, float_to_f16);
  expect_mma("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, 4, float_to_e4m3);
}

TEST(PtxMatrix, LdmatrixAndMovmatrix) {
  std::vector<uint16_t> values(8 * 8);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  const Device<uint16_t> from(values);
  const Device<uint32_t> to(96);
  // Rows of a matrix as 16 bytes of lanes 0 .. 7, at a distance of 32 bytes.
  const std::string body = R"(
    mov.u32 %r1, shared;
    shl.b32 %r2, %r0, 5;
    add.u32 %r3, %r1, %r2;
    and.b32 %r4, %r0, 7;
    mul.wide.u32 %d2, %r4, 16;
    add.s64 %d3, %d0, %d2;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d3];
    st.shared.v4.u32 [%r3], {%r5, %r6, %r7, %r8};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r3];
    ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r10}, [%r3];
    movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r9;
    mul.wide.u32 %d4, %r0, 4;
    add.s64 %d5, %d1, %d4;
    st.global.u32 [%d5], %r9;
    st.global.u32 [%d5+128], %r10;
    st.global.u32 [%d5+256], %r11;
  )";
  ASSERT_EQ(run_body(body, {1, 32, 1, 1024}, {from, to}), "");
  const auto got = to.values();
  for (uint32_t l = 0; l < 32; ++l) {
    const uint32_t element = l / 4 * 8 + l % 4 * 2;
    const uint32_t across = l % 4 * 16 + l / 4;
    EXPECT_EQ(got[l], element | (element + 1) << 16);
    EXPECT_EQ(got[32 + l], across | (across + 8) << 16);
    EXPECT_EQ(got[64 + l], got[32 + l]);
  }
}

// How a matrix lies in shared memory: the canonical layouts of wgmma, spelled out.
struct Layout {
  int row_bytes;  // of the swizzle, 0: none
  bool k_major;
};

// Byte offset of (row, k) of 16-bit elements, rows of m or n; `rows` of them.
int offset_of(const Layout& l, int rows, int row, int k) {
  if (l.row_bytes == 0) {
    // 8 x 16 bytes at a time; K-major: neighbours in k first, else neighbours in rows.
    const int chunk = l.k_major ? row / 8 * 256 + k / 8 * 128 : k / 8 * (rows / 8 * 128) + row / 8 * 128;
    return chunk + (l.k_major ? row % 8 * 16 + k % 8 * 2 : k % 8 * 16 + row % 8 * 2);
  }
  int at = 0;
  if (l.k_major) {
    at = row * l.row_bytes + k * 2;
  } else {
    const int elements = l.row_bytes / 2;
    at = row / elements * (16 * l.row_bytes) + k * l.row_bytes + row % elements * 2;
  }
  return at ^ (at / 128 % (l.row_bytes / 16) * 16);
}
uint64_t descriptor_bits(const Layout& l, int rows) {
  int leading = 0;
  int stride = 8 * l.row_bytes;
  if (l.row_bytes == 0 && l.k_major) leading = 128, stride = 256;
  if (l.row_bytes == 0 && !l.k_major) leading = rows / 8 * 128, stride = 128;
  if (l.row_bytes != 0 && !l.k_major) leading = 16 * l.row_bytes;
  const uint64_t swizzle = l.row_bytes == 128 ? 1 : l.row_bytes == 64 ? 2 : l.row_bytes == 32 ? 3 : 0;
  return swizzle << 62 | static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16;
}
std::vector<uint16_t> laid(Matrix m, const Layout& l) {
  std::vector<uint16_t> bytes(8192);
  for (int r = 0; r < m.rows; ++r) {
    for (int k = 0; k < m.columns; ++k) {
      bytes[static_cast<size_t>(offset_of(l, m.rows, r, k) / 2)] = static_cast<uint16_t>(float_to_bf16(m.at(r, k)));
    }
  }
  return bytes;
}

constexpr int kColumns = 64;
// 64 x 64 sums, twice the product a b^T + a b^T by accumulating; `wait` before they are stored.
std::vector<float> run_wgmma(const Layout& la, const Layout& lb, const std::string& wait, uint64_t seed,
                             const std::string& fence = "fence.proxy.async.shared::cta;",
                             const std::string& expected_fault = "") {
  std::vector<uint16_t> in = laid(Matrix::drawn(64, 16, 3), la);
  const std::vector<uint16_t> second = laid(Matrix::drawn(kColumns, 16, 4), lb);
  in.insert(in.end(), second.begin(), second.end());
  const Device<uint16_t> from(in);
  const Device<float> to(128 * 32);
  std::string body = R"(
    mov.u32 %r1, shared;
    mov.u32 %r2, %r0;
  COPY:
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d3, %d0, %d2;
    ld.global.u32 %r3, [%d3];
    shl.b32 %r4, %r2, 2;
    add.u32 %r4, %r4, %r1;
    st.shared.u32 [%r4], %r3;
    add.u32 %r2, %r2, 128;
    setp.lt.u32 %p0, %r2, 8192;
    @%p0 bra COPY;
    )" + fence + R"(
    bar.sync 0;
    and.b32 %r5, %r1, 0x3ffff;
    shr.u32 %r5, %r5, 4;
    cvt.u64.u32 %d4, %r5;
  )";
  body += fmt::format("or.b64 %d5, %d4, {};\nadd.s64 %d6, %d4, 1024;\nor.b64 %d6, %d6, {};\n", descriptor_bits(la, 64),
                      descriptor_bits(lb, kColumns));
  std::string sums;
  for (int i = 0; i < 32; ++i) {
    body += fmt::format("mov.f32 %f{}, 0f00000000;\n", i);
    sums += fmt::format("{}%f{}", i == 0 ? "" : ", ", i);
  }
  body += "wgmma.fence.sync.aligned;\n";
  for (const char* accumulate : {"0", "1"}) {
    body += fmt::format("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{}}}, %d5, %d6, {}, 1, 1, {}, {};\n",
                        sums, accumulate, la.k_major ? 0 : 1, lb.k_major ? 0 : 1);
  }
  body += "wgmma.commit_group.sync.aligned;\n" + wait + "\nmul.wide.u32 %d7, %r0, 128;\nadd.s64 %d8, %d1, %d7;\n";
  for (int i = 0; i < 32; ++i) body += fmt::format("st.global.f32 [%d8+{}], %f{};\n", 4 * i, i);
  const std::string fault = run_body(body, {1, 128, 1, 32768}, {from, to}, seed, true);
  EXPECT_NE(fault.find(expected_fault), std::string::npos) << fault;
  EXPECT_EQ(fault.empty(), expected_fault.empty()) << fault;
  return to.values();
}

std::vector<float> expected_wgmma() {
  Matrix d = product(Matrix::drawn(64, 16, 3), Matrix::drawn(kColumns, 16, 4));
  std::vector<float> all(128 * 32);
  for (int thread = 0; thread < 128; ++thread) {
    for (int r = 0; r < 32; ++r) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + r / 2 % 2 * 8;
      all[static_cast<size_t>(thread * 32 + r)] = 2 * d.at(row, r / 4 * 8 + thread % 4 * 2 + r % 2);
    }
  }
  return all;
}

TEST(PtxMatrix, WgmmaInEveryLayout) {
  for (const int a : {128, 64, 32, 0}) {
    for (const int b : {128, 64, 32, 0}) {
      for (const bool a_k_major : {true, false}) {
        for (const bool b_k_major : {true, false}) {
          SCOPED_TRACE(testing::Message() << a << " " << b << " " << a_k_major << " " << b_k_major);
          EXPECT_EQ(run_wgmma({a, a_k_major}, {b, b_k_major}, "wgmma.wait_group.sync.aligned 0;", 0), expected_wgmma());
        }
      }
    }
  }
}

TEST(PtxMatrix, WgmmaWithoutAFenceOfTheProxies) {
  const Layout l{128, true};
  run_wgmma(l, l, "wgmma.wait_group.sync.aligned 0;", 0, "", "by tensor cores, without fence.proxy.async");
}

TEST(PtxMatrix, WgmmaWithoutItsWait) {
  const Layout l{128, true};
  EXPECT_NE(run_wgmma(l, l, "", 0), expected_wgmma());
  EXPECT_NE(run_wgmma(l, l, "wgmma.wait_group.sync.aligned 1;", 0), expected_wgmma());
  EXPECT_EQ(run_wgmma(l, l, "", 1), expected_wgmma()) << "an odd seed computes at once";
}

}  // namespace
}  // namespace ptx::test
