// bf16 and fp16, alone and in pairs.
#include "binder.hpp"
#include "numbers.hpp"

namespace ptx {
namespace {

struct Add {
  static float apply(float a, float b) { return a + b; }
};
struct Sub {
  static float apply(float a, float b) { return a - b; }
};
struct Mul {
  static float apply(float a, float b) { return a * b; }
};
struct Fma {
  static float apply(float a, float b, float c) { return fma_to_odd(a, b, c); }
};
struct FmaRelu {
  static float apply(float a, float b, float c) {
    const float v = fma_to_odd(a, b, c);
    return v < 0 ? 0 : v;
  }
};
struct Exp2 {
  static float apply(float a) { return std::exp2(a); }
};
struct Tanh {
  static float apply(float a) { return std::tanh(a); }
};

// F: the format; pairs: both halves.
template <class F, bool kPair, class Op, class... Lane>
uint32_t halves(Lane... v) {
  const uint32_t low = F::narrow(Op::apply(F::widen(v & 0xffff)...));
  if (!kPair) return low;
  return low | F::narrow(Op::apply(F::widen(v >> 16)...)) << 16;
}
template <class F, bool kPair, class Op>
void half_1(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) { return halves<F, kPair, Op>(a[i]); });
}
template <class F, bool kPair, class Op>
void half_2(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) { return halves<F, kPair, Op>(a[i], b[i]); });
}
template <class F, bool kPair, class Op>
void half_3(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  const uint32_t* c = row<uint32_t>(w, in.c);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) { return halves<F, kPair, Op>(a[i], b[i], c[i]); });
}

template <uint32_t kFlip, uint32_t kKeep>
void sign_bits(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) { return (a[i] ^ kFlip) & kKeep; });
}

template <class F, bool kPair>
size_t bind_format(Binder& b) {
  const auto op = b.op();
  if (op == "fma") {
    b.in.run = b.has("relu") ? &half_3<F, kPair, FmaRelu> : &half_3<F, kPair, Fma>;
    return 4;
  }
  if (op == "ex2") b.in.run = &half_1<F, kPair, Exp2>;
  if (op == "tanh") b.in.run = &half_1<F, kPair, Tanh>;
  if (op == "neg") b.in.run = kPair ? &sign_bits<0x80008000U, ~0U> : &sign_bits<0x8000U, ~0U>;
  if (op == "abs") b.in.run = &sign_bits<0, 0x7fff7fffU>;
  if (b.in.run != nullptr) return 2;
  if (op == "add") b.in.run = &half_2<F, kPair, Add>;
  if (op == "sub") b.in.run = &half_2<F, kPair, Sub>;
  if (op == "mul") b.in.run = &half_2<F, kPair, Mul>;
  if (op == "min") b.in.run = b.has("NaN") ? &half_2<F, kPair, NanOr<MinOf>> : &half_2<F, kPair, MinOf>;
  if (op == "max") b.in.run = b.has("NaN") ? &half_2<F, kPair, NanOr<MaxOf>> : &half_2<F, kPair, MaxOf>;
  return b.in.run != nullptr ? 3 : 0;
}

}  // namespace

bool bind_half(Binder& b) {
  if (b.has("sat") || b.has("xorsign") || b.op() == "set" || b.op() == "setp" || b.op() == "cvt") return false;
  size_t count = 0;
  if (b.type == Type::kBf16) count = bind_format<Bf16, false>(b);
  if (b.type == Type::kBf16x2) count = bind_format<Bf16, true>(b);
  if (b.type == Type::kF16) count = bind_format<F16, false>(b);
  if (b.type == Type::kF16x2) count = bind_format<F16, true>(b);
  return count != 0 && b.plain(count, false);
}

}  // namespace ptx
