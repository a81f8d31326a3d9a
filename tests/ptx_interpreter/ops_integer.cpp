// Integer arithmetic.
#include <limits>

#include "binder.hpp"

namespace ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
template <class T>
using Product = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, Int128, Uint128>,
                                   std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
struct MulLow {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct MulHigh {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>((static_cast<Product<T>>(a) * b) >> (8 * sizeof(T)));
  }
};
// The result is twice as wide.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
struct MulWide {
  template <class T>
  static Wide<T> apply(T a, T b) {
    return static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};
struct MadLow {
  template <class T>
  static T apply(T a, T b, T c) {
    return Add::apply(MulLow::apply(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  static T apply(T a, T b, T c) {
    return Add::apply(MulHigh::apply(a, b), c);
  }
};
struct MadWide {
  template <class T>
  static Wide<T> apply(T a, T b, Wide<T> c) {
    return Add::apply(MulWide::apply(a, b), c);
  }
};
struct Div {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub::apply(T{0}, a);
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a > b ? a : b;
  }
};
struct Neg {
  template <class T>
  static T apply(T a) {
    return Sub::apply(T{0}, a);
  }
};
struct Abs {
  template <class T>
  static T apply(T a) {
    return a < 0 ? Neg::apply(a) : a;
  }
};
struct Sad {
  template <class T>
  static T apply(T a, T b, T c) {
    return Add::apply(c, a < b ? Sub::apply(b, a) : Sub::apply(a, b));
  }
};

// add, sub, mad with the carry flag; value: bit 0 reads it, bit 1 writes it.
template <class T, bool kSubtract>
void with_carry(Warp& w, const Instruction& in) {
  Bits<T>* d = row<Bits<T>>(w, in.d);
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  const Bits<T>* b = row<Bits<T>>(w, in.b);
  each_lane(w.exec, [&](int i) {
    const Mask bit = Mask{1} << i;
    const unsigned carry_in = (in.value & 1) != 0 && (w.carry & bit) != 0 ? 1 : 0;
    const Bits<T> x = a[i];
    const Bits<T> y = b[i];
    Uint128 wide = 0;
    if (kSubtract) {
      wide = static_cast<Uint128>(x) - y - carry_in;
    } else {
      wide = static_cast<Uint128>(x) + y + carry_in;
    }
    d[i] = static_cast<Bits<T>>(wide);
    if ((in.value & 2) != 0) w.carry = (wide >> (8 * sizeof(T)) & 1) != 0 ? w.carry | bit : w.carry & ~bit;
  });
}
template <class T, bool kHigh>
void mad_with_carry(Warp& w, const Instruction& in) {
  Bits<T>* d = row<Bits<T>>(w, in.d);
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  const Bits<T>* b = row<Bits<T>>(w, in.b);
  const Bits<T>* c = row<Bits<T>>(w, in.c);
  each_lane(w.exec, [&](int i) {
    const Mask bit = Mask{1} << i;
    const unsigned carry_in = (in.value & 1) != 0 && (w.carry & bit) != 0 ? 1 : 0;
    const T product = kHigh ? MulHigh::apply(static_cast<T>(a[i]), static_cast<T>(b[i]))
                            : MulLow::apply(static_cast<T>(a[i]), static_cast<T>(b[i]));
    const Uint128 wide = static_cast<Uint128>(static_cast<Bits<T>>(product)) + c[i] + carry_in;
    d[i] = static_cast<Bits<T>>(wide);
    if ((in.value & 2) != 0) w.carry = (wide >> (8 * sizeof(T)) & 1) != 0 ? w.carry | bit : w.carry & ~bit;
  });
}

template <class T>
Run wide_run(bool mad) {
  return mad ? &ternary<MadWide, T, Wide<T>> : &binary<MulWide, T, Wide<T>>;
}
Run wide_of(Type type, bool mad) {
  switch (type) {
    case Type::kU16:
      return wide_run<uint16_t>(mad);
    case Type::kS16:
      return wide_run<int16_t>(mad);
    case Type::kU32:
      return wide_run<uint32_t>(mad);
    case Type::kS32:
      return wide_run<int32_t>(mad);
    default:
      return nullptr;
  }
}

template <class Op>
void add_packed(Warp& w, const Instruction& in) {  // two 16-bit integers
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) {
    return (Op::apply(a[i] & 0xffff, b[i] & 0xffff) & 0xffff) | (Op::apply(a[i] >> 16, b[i] >> 16) << 16);
  });
}

bool bind_carry(Binder& b) {
  const bool carries = b.op() == "addc" || b.op() == "subc" || b.op() == "madc";
  if (!carries && !b.has("cc")) return false;
  const bool wide = bytes_of(b.type) == 8;
  b.in.value = (carries ? 1 : 0) | (b.has("cc") ? 2 : 0);
  if (b.op() == "mad" || b.op() == "madc") {
    if (b.type == Type::kS32)
      b.in.run = b.has("hi") ? &mad_with_carry<int32_t, true> : &mad_with_carry<int32_t, false>;
    else if (wide)
      b.in.run = b.has("hi") ? &mad_with_carry<uint64_t, true> : &mad_with_carry<uint64_t, false>;
    else
      b.in.run = b.has("hi") ? &mad_with_carry<uint32_t, true> : &mad_with_carry<uint32_t, false>;
    return b.plain(4, wide);
  }
  if (b.op().substr(0, 3) == "sub")
    b.in.run = wide ? &with_carry<uint64_t, true> : &with_carry<uint32_t, true>;
  else
    b.in.run = wide ? &with_carry<uint64_t, false> : &with_carry<uint32_t, false>;
  return b.plain(3, wide);
}

bool bind_wide(Binder& b) {
  const bool mad = b.op() == "mad";
  b.in.run = wide_of(b.type, mad);
  const bool result = bytes_of(b.type) == 4;
  b.in.d = b.write(b.operand(0));
  b.in.a = b.read(b.operand(1), false);
  b.in.b = b.read(b.operand(2), false);
  if (mad) b.in.c = b.read(b.operand(3), result);
  return b.in.run != nullptr;
}

}  // namespace

bool bind_integer(Binder& b) {
  const auto op = b.op();
  if (op == "add" || op == "sub" || op == "addc" || op == "subc" || op == "mad" || op == "madc") {
    if (bind_carry(b)) return true;
  }
  if ((op == "mul" || op == "mad") && b.has("wide")) return bind_wide(b);
  if (op == "add" && (b.has("u16x2") || b.has("s16x2"))) {
    b.in.run = &add_packed<Add>;
    return b.plain(3, false);
  }
  const Type t = b.type;
  size_t operands = 3;
  Run run = nullptr;
  if (op == "add") run = PTX_INTEGER_RUN(binary, Add, t);
  if (op == "sub") run = PTX_INTEGER_RUN(binary, Sub, t);
  if (op == "div") run = PTX_INTEGER_RUN(binary, Div, t);
  if (op == "rem") run = PTX_INTEGER_RUN(binary, Rem, t);
  if (op == "min") run = PTX_INTEGER_RUN(binary, Min, t);
  if (op == "max") run = PTX_INTEGER_RUN(binary, Max, t);
  if (op == "mul") run = b.has("hi") ? PTX_INTEGER_RUN(binary, MulHigh, t) : PTX_INTEGER_RUN(binary, MulLow, t);
  if (op == "mad") {
    run = b.has("hi") ? PTX_INTEGER_RUN(ternary, MadHigh, t) : PTX_INTEGER_RUN(ternary, MadLow, t);
    operands = 4;
  }
  if (op == "sad") {
    run = PTX_INTEGER_RUN(ternary, Sad, t);
    operands = 4;
  }
  if (op == "neg" || op == "abs") {
    run = op == "neg" ? PTX_INTEGER_RUN(unary, Neg, t) : PTX_INTEGER_RUN(unary, Abs, t);
    operands = 2;
  }
  if (run == nullptr || b.has("sat")) return false;
  b.in.run = run;
  return b.plain(operands, bytes_of(t) == 8);
}

}  // namespace ptx
