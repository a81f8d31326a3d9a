// wgmma: each warp of a warpgroup computes its own 16 of the 64 rows. Products are computed when they are waited for;
// with an odd seed at once.
#include <algorithm>

#include "access.hpp"
#include "binder.hpp"
#include "fragments.hpp"

namespace ptx {
namespace {

// A matrix in shared memory: rows of m or n, and k.
struct Operand2 {
  uint32_t address;          // of the first element
  uint32_t leading, stride;  // bytes
  uint32_t row_bytes;        // of the swizzle: 128, 64, 32; 0: none
  bool k_major;

  Operand2(uint64_t descriptor, bool k_major_)
      : address(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        row_bytes(swizzle_of(descriptor)),
        k_major(k_major_) {}
  static uint32_t swizzle_of(uint64_t descriptor) {
    constexpr uint32_t kRows[] = {0, 128, 64, 32};
    return kRows[descriptor >> 62];
  }

  // Of 16 bytes. K-major: of row r from k on; otherwise of k from row r on.
  uint32_t at(uint32_t r, uint32_t k, uint32_t bytes) const {
    if (row_bytes == 0) {
      return k_major ? address + r / 8 * stride + k * bytes / 16 * leading + r % 8 * 16
                     : address + r / 8 * stride + k / 8 * leading + k % 8 * 16;
    }
    const uint32_t elements = row_bytes / bytes;
    const uint32_t plain =
        k_major ? address + r / 8 * stride + r % 8 * row_bytes + k * bytes
                : address + r / elements * leading + k / 8 * stride + k % 8 * row_bytes + r % elements * bytes;
    // Chunks of 16 bytes are exchanged by the row of 128 bytes that the address lies in.
    return plain ^ ((plain >> 7 & (row_bytes / 16 - 1)) << 4);
  }
};

// to[k][r] for r in [first, first + rows)
template <class F>
void read_operand(Warp& w, const Operand2& m, uint32_t first, uint32_t rows, uint32_t depth, float* to) {
  constexpr uint32_t kChunk = 16 / F::kBytes;
  const uint64_t rank = uint64_t{w.block->rank} << kRankShift;
  const auto chunk = [&](uint32_t r, uint32_t k, float* v) {
    uint32_t words[4];
    std::memcpy(words, shared_at(w, rank | m.at(r, k, F::kBytes), 16, -1, false, Access::kTensorRead), 16);
    for (uint32_t i = 0; i < kChunk; ++i)
      v[i] = F::get(words[i / F::kPerRegister], static_cast<int>(i % F::kPerRegister));
  };
  float v[kChunk];
  if (m.k_major) {
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t k = 0; k < depth; k += kChunk) {
        chunk(first + r, k, v);
        for (uint32_t i = 0; i < kChunk; ++i) to[(k + i) * rows + r] = v[i];
      }
    }
  } else {
    for (uint32_t k = 0; k < depth; ++k) {
      for (uint32_t r = 0; r < rows; r += kChunk) chunk(first + r, k, to + k * rows + r);
    }
  }
}

enum Numbers { kColumns, kTransA, kTransB, kNegateA, kNegateB };
constexpr uint32_t kRows = 16;  // of a warp

// Some rows by eight columns: sums stay in registers. Products of these formats are exact in fp32.
using Vector [[gnu::vector_size(32)]] = float;
constexpr uint32_t kVector = 8;
constexpr uint32_t kTogether = 8;
template <uint32_t kDepth>
void multiply_tile(const float (&a)[kDepth][kRows], uint32_t m, const float* b, float* d, uint32_t columns) {
  Vector sum[kTogether] = {};
  for (uint32_t k = 0; k < kDepth; ++k) {
    Vector v;
    std::memcpy(&v, b + k * columns, sizeof(v));
    for (uint32_t i = 0; i < kTogether; ++i) sum[i] += a[k][m + i] * v;
  }
  for (uint32_t i = 0; i < kTogether; ++i) std::memcpy(d + i * columns, &sum[i], sizeof(Vector));
}

template <class F>
void multiply(Warp& w, const WgmmaOp& op) {
  const Extra& e = *op.instruction->extra;
  const auto columns = static_cast<uint32_t>(e.numbers[kColumns]);
  constexpr uint32_t kDepth = 32 / F::kBytes;
  float a[kDepth][kRows];
  if (e.a.empty()) {
    read_operand<F>(w, Operand2(op.a, e.numbers[kTransA] == 0), static_cast<uint32_t>(w.index % 4) * kRows, kRows,
                    kDepth, &a[0][0]);
  } else {
    for (size_t r = 0; r < 4; ++r) {
      const auto* bits = row<uint32_t>(w, e.a[r]);
      for (uint32_t i = 0; i < kLanes; ++i) {
        for (uint32_t j = 0; j < F::kPerRegister; ++j) {
          a[i % 4 * F::kPerRegister + j + r / 2 * kDepth / 2][i / 4 + r % 2 * 8] = F::get(bits[i], static_cast<int>(j));
        }
      }
    }
  }
  static thread_local std::vector<float> b;
  static thread_local std::vector<float> d;
  b.resize(kDepth * columns);
  d.resize(kRows * columns);
  read_operand<F>(w, Operand2(op.b, e.numbers[kTransB] == 0), 0, columns, kDepth, b.data());
  const float sign = e.numbers[kNegateA] != e.numbers[kNegateB] ? -1.0F : 1.0F;
  for (uint32_t m = 0; m < kRows; m += kTogether) {
    for (uint32_t n = 0; n < columns; n += kVector)
      multiply_tile<kDepth>(a, m, b.data() + n, d.data() + m * columns + n, columns);
  }
  for (uint32_t r = 0; r < columns / 2; ++r) {
    auto* to = row<uint32_t>(w, e.d[r]);
    for (uint32_t i = 0; i < kLanes; ++i) {
      const float product = sign * d[(i / 4 + r / 2 % 2 * 8) * columns + r / 4 * 8 + i % 4 * 2 + r % 2];
      const float sum = op.accumulate ? std::bit_cast<float>(to[i]) + product : product;
      to[i] = std::bit_cast<uint32_t>(canonical(sum));
    }
  }
}

void land(Warp& w, const WgmmaOp& op) {
  reinterpret_cast<void (*)(Warp&, const WgmmaOp&)>(static_cast<uintptr_t>(op.instruction->extra->numbers[7]))(w, op);
}

uint64_t uniform(Warp& w, Slot s) {
  const uint64_t v = read_lane(w, s, 0);
  for (int i = 1; i < kLanes; ++i) {
    if (read_lane(w, s, i) != v) w.fail("wgmma: lanes have different descriptors", i);
  }
  return v;
}

void mma_async(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  if (w.exec != kAllLanes) w.fail("wgmma: not all lanes of the warp take part");
  WgmmaOp op{&in, in.extra->a.empty() ? uniform(w, in.a) : 0, uniform(w, in.b), true, 0};
  const Mask accumulate = read_mask(w, in.c);
  if (accumulate != 0 && accumulate != kAllLanes) w.fail("wgmma: lanes disagree on scale-d");
  op.accumulate = accumulate != 0;
  if (w.block->cluster->late)
    w.products.push_back(op);
  else
    land(w, op);
}
void commit(Warp& w, const Instruction&) {
  ++w.product_commits;
  for (WgmmaOp& op : w.products) {
    if (op.commit == 0) op.commit = w.product_commits;
  }
}
void wait_group(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  std::erase_if(w.products, [&](const WgmmaOp& op) {
    const bool done = op.commit != 0 && op.commit + static_cast<uint64_t>(in.value) <= w.product_commits;
    if (done) land(w, op);
    return done;
  });
}
void fence(Warp& w, const Instruction&) { (void)w.together(kAllLanes); }

template <class F>
int64_t land_of() {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(&multiply<F>));
}

bool bind_mma_async(Binder& b) {
  // wgmma.mma_async.sync.aligned.m64nNkK.f32.type.type
  if (b.parts.size() != 8 || b.parts[5] != "f32" || b.parts[6] != b.parts[7]) return false;
  const std::string_view shape = b.parts[4];
  const std::string_view type = b.parts[6];
  Extra& e = b.extra();
  e.numbers[kColumns] = std::stoi(std::string(shape.substr(shape.find('n') + 1)));
  const bool sixteen = type == "bf16" || type == "f16";
  if (type == "bf16") e.numbers[7] = land_of<Bf16Pair>();
  if (type == "f16") e.numbers[7] = land_of<F16Pair>();
  if (type == "e4m3") e.numbers[7] = land_of<E4m3Four>();
  if (type == "e5m2") e.numbers[7] = land_of<E5m2Four>();
  e.d = b.list(b.operand(0), false);
  const bool registers = b.operand(1).kind == Operand::Kind::kVector;
  if (registers)
    e.a = b.list(b.operand(1), false);
  else
    b.in.a = b.read(b.operand(1), true);
  b.in.b = b.read(b.operand(2), true);
  b.in.c = b.predicate(b.operand(3));
  e.numbers[kNegateA] = static_cast<int64_t>(b.operand(4).value);
  e.numbers[kNegateB] = static_cast<int64_t>(b.operand(5).value);
  if (sixteen) {
    if (!registers) e.numbers[kTransA] = static_cast<int64_t>(b.operand(6).value);
    e.numbers[kTransB] = static_cast<int64_t>(b.operand(registers ? 6 : 7).value);
  }
  b.in.run = &mma_async;
  return e.numbers[7] != 0 && e.d.size() == static_cast<size_t>(e.numbers[kColumns]) / 2;
}

}  // namespace

bool bind_wgmma(Binder& b) {
  if (b.op() != "wgmma") return false;
  if (b.has("mma_async")) return bind_mma_async(b);
  if (b.has("fence")) b.in.run = &fence;
  if (b.has("commit_group")) b.in.run = &commit;
  if (b.has("wait_group")) {
    b.in.value = static_cast<int64_t>(b.operand(0).value);
    b.in.run = &wait_group;
  }
  return b.in.run != nullptr;
}

}  // namespace ptx
