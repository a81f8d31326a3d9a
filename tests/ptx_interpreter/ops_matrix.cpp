// ldmatrix, stmatrix, movmatrix, mma.sync.
#include "access.hpp"
#include "binder.hpp"
#include "fragments.hpp"
#include "profile.hpp"

namespace ptx {
namespace {

// Matrix m of 8 rows of 16 bytes: its rows' addresses are those of lanes 8m .. 8m+7. Lane l holds elements 2 (l % 4)
// and the next of row l / 4, or of column l / 4.
uint8_t* matrix_row(Warp& w, const Instruction& in, size_t matrix, int r, Access access) {
  const int lane = static_cast<int>(matrix) * 8 + r;
  uint64_t address = lane_address(w, in, lane);
  if (in.extra->space == Space::kGeneric) {
    if (address >> kWindowShift != static_cast<uint64_t>(Window::kShared)) fail_access(w, "generic", address, 16, lane);
    address &= 0xffffffff;
  }
  if (address % 16 != 0) fail_alignment(w, "shared", address, 16, lane);
  return shared_at(w, address, 16, lane, false, access);
}

void count_rows(Warp& w, const Instruction& in, size_t matrices) {
  if (w.counters == nullptr) return;
  uint64_t at[kLanes];
  for (int i = 0; i < kLanes; ++i) at[i] = lane_address(w, in, i) & kSharedOffsetMask;
  const Mask lanes = matrices == 4 ? kAllLanes : (Mask{1} << (8 * matrices)) - 1;
  count_shared(w.counters[w.pc - 1], at, lanes, 16);
}

void ldmatrix(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const bool transposed = in.extra->numbers[0] != 0;
  count_rows(w, in, in.extra->d.size());
  for (size_t m = 0; m < in.extra->d.size(); ++m) {
    uint16_t v[8][8];
    for (int r = 0; r < 8; ++r) std::memcpy(v[r], matrix_row(w, in, m, r, Access::kRead), 16);
    each_lane(w.exec, [&](int i) {
      const int r = i / 4;
      const int c = i % 4 * 2;
      const uint32_t low = transposed ? v[c][r] : v[r][c];
      const uint32_t high = transposed ? v[c + 1][r] : v[r][c + 1];
      write_lane(w, in.extra->d[m], i, low | high << 16);
    });
  }
}
void stmatrix(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const bool transposed = in.extra->numbers[0] != 0;
  count_rows(w, in, in.extra->b.size());
  for (size_t m = 0; m < in.extra->b.size(); ++m) {
    uint16_t v[8][8];
    each_lane(w.exec, [&](int i) {
      const int r = i / 4;
      const int c = i % 4 * 2;
      const auto bits = static_cast<uint32_t>(read_lane(w, in.extra->b[m], i));
      (transposed ? v[c][r] : v[r][c]) = static_cast<uint16_t>(bits);
      (transposed ? v[c + 1][r] : v[r][c + 1]) = static_cast<uint16_t>(bits >> 16);
    });
    for (int r = 0; r < 8; ++r) std::memcpy(matrix_row(w, in, m, r, Access::kWrite), v[r], 16);
  }
}
void movmatrix(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  uint16_t v[8][8];
  each_lane(w.exec, [&](int i) {
    const auto bits = static_cast<uint32_t>(read_lane(w, in.a, i));
    v[i / 4][i % 4 * 2] = static_cast<uint16_t>(bits);
    v[i / 4][i % 4 * 2 + 1] = static_cast<uint16_t>(bits >> 16);
  });
  each_lane(w.exec, [&](int i) {
    const uint32_t low = v[i % 4 * 2][i / 4];
    const uint32_t high = v[i % 4 * 2 + 1][i / 4];
    write_lane(w, in.d, i, low | high << 16);
  });
}

bool bind_matrices(Binder& b) {
  if (b.type != Type::kB16) return false;
  const bool load = b.op() == "ldmatrix";
  Extra& extra = b.extra();
  extra.numbers[0] = b.has("trans") ? 1 : 0;
  if (b.op() == "movmatrix") {
    b.in.d = b.write(b.operand(0));
    b.in.a = b.read(b.operand(1), false);
    b.in.run = &movmatrix;
    return b.has("trans");
  }
  b.address(b.operand(load ? 1 : 0));
  extra.space = b.has("shared") || b.has("shared::cta") ? Space::kShared : Space::kGeneric;
  (load ? extra.d : extra.b) = b.list(b.operand(load ? 0 : 1), false);
  b.in.run = load ? &ldmatrix : &stmatrix;
  return b.has("m8n8");
}

// d = a b + c with a [16, K] and b [K, 8]. With g = lane / 4 and t = lane % 4, register r of a holds row g + 8 (r % 2)
// from k = t * per_register + K / 2 * (r / 2) on; register r of b column g from k = t * per_register + K / 2 * r on;
// c and d as rows g, g + 8 and columns 2t, 2t + 1.
template <class F>
void mma(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const Extra& e = *in.extra;
  const int a_halves = static_cast<int>(e.a.size()) / 2;  // of k
  const int k_half = 4 * F::kPerRegister;
  const int depth = k_half * a_halves;
  float a[16][32];
  float b[32][8];
  for (int r = 0; r < static_cast<int>(e.a.size()); ++r) {
    const auto* bits = row<uint32_t>(w, e.a[static_cast<size_t>(r)]);
    for (int i = 0; i < kLanes; ++i) {
      float* to = &a[i / 4 + r % 2 * 8][i % 4 * F::kPerRegister + r / 2 * k_half];
      for (int j = 0; j < F::kPerRegister; ++j) to[j] = F::get(bits[i], j);
    }
  }
  for (int r = 0; r < static_cast<int>(e.b.size()); ++r) {
    const auto* bits = row<uint32_t>(w, e.b[static_cast<size_t>(r)]);
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < F::kPerRegister; ++j) {
        b[i % 4 * F::kPerRegister + j + r * k_half][i / 4] = F::get(bits[i], j);
      }
    }
  }
  float sum[16][8] = {};
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < 8; ++n) sum[m][n] = std::fma(a[m][k], b[k][n], sum[m][n]);
    }
  }
  uint32_t c[4][kLanes];  // d may be the same registers
  for (size_t r = 0; r < 4; ++r) std::memcpy(c[r], row<uint32_t>(w, e.c[r]), sizeof(c[r]));
  for (int r = 0; r < 4; ++r) {
    auto* d = row<uint32_t>(w, e.d[static_cast<size_t>(r)]);
    for (int i = 0; i < kLanes; ++i) {
      const float product = sum[i / 4 + r / 2 * 8][i % 4 * 2 + r % 2];
      d[i] = std::bit_cast<uint32_t>(canonical(std::bit_cast<float>(c[r][i]) + product));
    }
  }
}

bool bind_mma(Binder& b) {
  if (!b.has("sync") || !b.has("row") || !b.has("col") || b.operands() != 4) return false;
  // mma.sync.aligned.shape.row.col.d.a.b.c
  const size_t n = b.parts.size();
  const std::string_view a_type = b.parts[n - 3];
  if (b.parts[n - 4] != "f32" || b.parts[n - 1] != "f32") return false;
  Extra& extra = b.extra();
  extra.d = b.list(b.operand(0), false);
  extra.a = b.list(b.operand(1), false);
  extra.b = b.list(b.operand(2), false);
  extra.c = b.list(b.operand(3), false);
  if (a_type != b.parts[n - 2]) return false;
  const bool sixteen = b.has("m16n8k16") || b.has("m16n8k8");
  if (sixteen && a_type == "bf16") b.in.run = &mma<Bf16Pair>;
  if (sixteen && a_type == "f16") b.in.run = &mma<F16Pair>;
  if (b.has("m16n8k32") && a_type == "e4m3") b.in.run = &mma<E4m3Four>;
  if (b.has("m16n8k32") && a_type == "e5m2") b.in.run = &mma<E5m2Four>;
  return b.in.run != nullptr && extra.d.size() == 4 && extra.c.size() == 4;
}

}  // namespace

bool bind_matrix(Binder& b) {
  if (b.op() == "mma") return bind_mma(b);
  if (b.op() == "ldmatrix" || b.op() == "stmatrix" || b.op() == "movmatrix") return bind_matrices(b);
  return false;
}

}  // namespace ptx
