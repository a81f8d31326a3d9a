// fp32 and fp64 arithmetic.
#include <cmath>

#include "binder.hpp"
#include "numbers.hpp"

namespace ptx {
namespace {

template <class T>
T result(T v) {
  if constexpr (sizeof(T) == 4) {
    return canonical(v);
  } else {
    return v;
  }
}
template <class T>
T flushed(T v) {
  return std::fabs(v) < static_cast<T>(0x1p-126) ? std::copysign(T{0}, v) : v;
}
template <class T>
T saturated(T v) {
  return v > 0 ? (v < 1 ? v : T{1}) : T{0};
}

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  static T apply(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <class T>
  static T apply(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <class T>
  static T apply(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct Rcp {
  template <class T>
  static T apply(T a) {
    return T{1} / a;
  }
};
struct Sqrt {
  template <class T>
  static T apply(T a) {
    return std::sqrt(a);
  }
};
struct Rsqrt {
  template <class T>
  static T apply(T a) {
    return T{1} / std::sqrt(a);
  }
};
struct Exp2 {
  template <class T>
  static T apply(T a) {
    return std::exp2(a);
  }
};
struct Log2 {
  template <class T>
  static T apply(T a) {
    return std::log2(a);
  }
};
struct Sin {
  template <class T>
  static T apply(T a) {
    return std::sin(a);
  }
};
struct Cos {
  template <class T>
  static T apply(T a) {
    return std::cos(a);
  }
};
struct Tanh {
  template <class T>
  static T apply(T a) {
    return std::tanh(a);
  }
};
struct CopySign {  // copysign.f32 d, a, b: the sign of a, the magnitude of b
  template <class T>
  static T apply(T a, T b) {
    return std::copysign(b, a);
  }
};
// Bits, also of a NaN.
struct Neg {
  template <class T>
  static T apply(T a) {
    return static_cast<T>(a ^ (T{1} << (8 * sizeof(T) - 1)));
  }
};
struct Abs {
  template <class T>
  static T apply(T a) {
    return static_cast<T>(a & ~(T{1} << (8 * sizeof(T) - 1)));
  }
};

template <class Op>
struct Plain {
  template <class... T>
  static auto apply(T... v) {
    return result(Op::apply(v...));
  }
};
template <class Op>
struct Flush {
  template <class... T>
  static auto apply(T... v) {
    return result(flushed(Op::apply(flushed(v)...)));
  }
};
template <class Op>
struct Saturate {
  template <class... T>
  static auto apply(T... v) {
    return saturated(Op::apply(v...));
  }
};

enum class Arity { kOne, kTwo, kThree };
template <Arity kArity, class Op, class T>
Run run_of() {
  if constexpr (kArity == Arity::kOne) return &unary<Op, T>;
  if constexpr (kArity == Arity::kTwo) return &binary<Op, T>;
  if constexpr (kArity == Arity::kThree) return &ternary<Op, T>;
}

template <Arity kArity, class Op>
bool bind_op(Binder& b) {
  const bool wide = b.type == Type::kF64;
  if (wide)
    b.in.run = run_of<kArity, Plain<Op>, double>();
  else if (b.has("sat"))
    b.in.run = run_of<kArity, Saturate<Op>, float>();
  else if (b.has("ftz"))
    b.in.run = run_of<kArity, Flush<Op>, float>();
  else
    b.in.run = run_of<kArity, Plain<Op>, float>();
  return b.plain(2 + static_cast<size_t>(kArity), wide);
}

enum Class : int64_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };
template <class T>
void testp(Warp& w, const Instruction& in) {
  Mask yes = 0;
  each_lane(w.exec, [&](int i) {
    const T v = value_of<T>(row<Bits<T>>(w, in.a)[i]);
    const bool is[] = {std::isfinite(v), std::isinf(v),    !std::isnan(v),
                       std::isnan(v),    std::isnormal(v), std::fpclassify(v) == FP_SUBNORMAL};
    if (is[in.value]) yes |= Mask{1} << i;
  });
  write_mask(w, in.d, yes);
}
bool bind_testp(Binder& b) {
  constexpr std::string_view kNames[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (b.has(kNames[i])) b.in.value = static_cast<int64_t>(i);
  }
  b.in.d = b.predicate(b.operand(0));
  b.in.a = b.read(b.operand(1), b.type == Type::kF64);
  b.in.run = b.type == Type::kF64 ? &testp<double> : &testp<float>;
  return true;
}

}  // namespace

bool bind_float(Binder& b) {
  if (b.type != Type::kF32 && b.type != Type::kF64) return false;
  if (b.has("rz") || b.has("rm") || b.has("rp") || b.has("xorsign")) return false;
  const auto op = b.op();
  if (op == "add") return bind_op<Arity::kTwo, Add>(b);
  if (op == "sub") return bind_op<Arity::kTwo, Sub>(b);
  if (op == "mul") return bind_op<Arity::kTwo, Mul>(b);
  if (op == "div") return bind_op<Arity::kTwo, Div>(b);
  if (op == "fma" || op == "mad") return bind_op<Arity::kThree, Fma>(b);
  if (op == "rcp") return bind_op<Arity::kOne, Rcp>(b);
  if (op == "sqrt") return bind_op<Arity::kOne, Sqrt>(b);
  if (op == "rsqrt") return bind_op<Arity::kOne, Rsqrt>(b);
  if (op == "ex2") return bind_op<Arity::kOne, Exp2>(b);
  if (op == "lg2") return bind_op<Arity::kOne, Log2>(b);
  if (op == "sin") return bind_op<Arity::kOne, Sin>(b);
  if (op == "cos") return bind_op<Arity::kOne, Cos>(b);
  if (op == "tanh") return bind_op<Arity::kOne, Tanh>(b);
  if (op == "min") return b.has("NaN") ? bind_op<Arity::kTwo, NanOr<MinOf>>(b) : bind_op<Arity::kTwo, MinOf>(b);
  if (op == "max") return b.has("NaN") ? bind_op<Arity::kTwo, NanOr<MaxOf>>(b) : bind_op<Arity::kTwo, MaxOf>(b);
  if (op == "copysign") return bind_op<Arity::kTwo, CopySign>(b);
  if (op == "neg" || op == "abs") {
    const bool wide = b.type == Type::kF64;
    if (op == "neg") b.in.run = wide ? &unary<Neg, uint64_t> : &unary<Neg, uint32_t>;
    if (op == "abs") b.in.run = wide ? &unary<Abs, uint64_t> : &unary<Abs, uint32_t>;
    return b.plain(2, wide);
  }
  return op == "testp" && bind_testp(b);
}

}  // namespace ptx
