// cvt.
#include <limits>

#include "binder.hpp"
#include "numbers.hpp"

namespace ptx {
namespace {

enum Rounding : int64_t { kNearest, kZero, kDown, kUp };

// f of each source value, whatever the widths of the registers; a narrow result is extended as its type says.
template <class S, class R, class F>
void convert(Warp& w, const Instruction& in, F f) {
  const auto loop = [&](auto* d, const auto* a) {
    using C = std::remove_reference_t<decltype(*d)>;
    fill_row(w.exec, d, [&](int i) {
      const R r = f(value_of<S>(static_cast<Bits<S>>(a[i])));
      if constexpr (std::is_floating_point_v<R>) {
        return static_cast<C>(bits_of<R>(r));
      } else {
        return static_cast<C>(r);
      }
    });
  };
  if (in.d.wide && in.a.wide)
    loop(row<uint64_t>(w, in.d), row<uint64_t>(w, in.a));
  else if (in.d.wide)
    loop(row<uint64_t>(w, in.d), row<uint32_t>(w, in.a));
  else if (in.a.wide)
    loop(row<uint32_t>(w, in.d), row<uint64_t>(w, in.a));
  else
    loop(row<uint32_t>(w, in.d), row<uint32_t>(w, in.a));
}

template <class S, class R>
void integer_to_integer(Warp& w, const Instruction& in) {
  convert<S, R>(w, in, [](S v) { return static_cast<R>(v); });
}
template <class S, class R>
void integer_saturated(Warp& w, const Instruction& in) {
  convert<S, R>(w, in, [](S v) {
    const auto wide = static_cast<Int128>(v);
    const auto low = static_cast<Int128>(std::numeric_limits<R>::min());
    const auto high = static_cast<Int128>(std::numeric_limits<R>::max());
    return static_cast<R>(wide < low ? low : wide > high ? high : wide);
  });
}
template <class S, class R>
void integer_to_float(Warp& w, const Instruction& in) {
  convert<S, R>(w, in, [](S v) { return static_cast<R>(v); });
}

template <class T>
T rounded(T v, int64_t how) {
  switch (how) {
    case kZero:
      return std::trunc(v);
    case kDown:
      return std::floor(v);
    case kUp:
      return std::ceil(v);
    default:
      return std::nearbyint(v);
  }
}
template <class S, class R>
void float_to_integer(Warp& w, const Instruction& in) {  // clamps; NaN: 0
  const int64_t how = in.value;
  convert<S, R>(w, in, [how](S x) {
    const S v = rounded(x, how);
    if (v != v) return R{0};
    // 2^bits, which a float holds, unlike the largest integer.
    const S end = std::ldexp(S{1}, std::numeric_limits<R>::digits);
    const S low = std::is_signed_v<R> ? -end : S{0};
    if (v >= end) return std::numeric_limits<R>::max();
    return v <= low ? std::numeric_limits<R>::min() : static_cast<R>(v);
  });
}
template <class S, class R>
void float_to_float(Warp& w, const Instruction& in) {
  convert<S, R>(w, in, [](S v) { return static_cast<R>(v); });
}
template <class T>
void float_to_whole(Warp& w, const Instruction& in) {
  const int64_t how = in.value;
  convert<T, T>(w, in, [how](T v) { return rounded(v, how); });
}
template <class T>
void float_saturated(Warp& w, const Instruction& in) {
  convert<T, float>(w, in, [](T v) { return static_cast<float>(v > 0 ? (v < 1 ? v : T{1}) : T{0}); });
}

template <class S>
Run from_integer(Type to, bool saturate) {
#define PTX_TO(TYPE, CPP) \
  case TYPE:              \
    return saturate ? &integer_saturated<S, CPP> : &integer_to_integer<S, CPP>
  switch (to) {
    PTX_TO(Type::kU8, uint8_t);
    PTX_TO(Type::kS8, int8_t);
    PTX_TO(Type::kU16, uint16_t);
    PTX_TO(Type::kS16, int16_t);
    PTX_TO(Type::kU32, uint32_t);
    PTX_TO(Type::kS32, int32_t);
    PTX_TO(Type::kU64, uint64_t);
    PTX_TO(Type::kS64, int64_t);
    case Type::kF32:
      return &integer_to_float<S, float>;
    case Type::kF64:
      return &integer_to_float<S, double>;
    default:
      return nullptr;
  }
#undef PTX_TO
}
template <class S>
Run from_float(Type to, bool whole, bool saturate) {
  switch (to) {
    case Type::kU8:
      return &float_to_integer<S, uint8_t>;
    case Type::kS8:
      return &float_to_integer<S, int8_t>;
    case Type::kU16:
      return &float_to_integer<S, uint16_t>;
    case Type::kS16:
      return &float_to_integer<S, int16_t>;
    case Type::kU32:
      return &float_to_integer<S, uint32_t>;
    case Type::kS32:
      return &float_to_integer<S, int32_t>;
    case Type::kU64:
      return &float_to_integer<S, uint64_t>;
    case Type::kS64:
      return &float_to_integer<S, int64_t>;
    case Type::kF32:
      if (saturate) return &float_saturated<S>;
      if constexpr (sizeof(S) == 4)
        return whole ? &float_to_whole<float> : &float_to_float<float, float>;
      else
        return &float_to_float<S, float>;
    case Type::kF64:
      if constexpr (sizeof(S) == 8)
        return whole ? &float_to_whole<double> : &float_to_float<double, double>;
      else
        return &float_to_float<S, double>;
    default:
      return nullptr;
  }
}

Run scalar_run(Type from, Type to, bool whole, bool saturate) {
  switch (from) {
    case Type::kU8:
      return from_integer<uint8_t>(to, saturate);
    case Type::kS8:
      return from_integer<int8_t>(to, saturate);
    case Type::kU16:
      return from_integer<uint16_t>(to, saturate);
    case Type::kS16:
      return from_integer<int16_t>(to, saturate);
    case Type::kU32:
      return from_integer<uint32_t>(to, saturate);
    case Type::kS32:
      return from_integer<int32_t>(to, saturate);
    case Type::kU64:
      return from_integer<uint64_t>(to, saturate);
    case Type::kS64:
      return from_integer<int64_t>(to, saturate);
    case Type::kF32:
      return from_float<float>(to, whole, saturate);
    case Type::kF64:
      return from_float<double>(to, whole, saturate);
    default:
      return nullptr;
  }
}

// One 32-bit row from one: `f` of the bits.
template <auto kConvert>
void bits_1(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) -> uint32_t { return kConvert(a[i]); });
}
// Two floats to a pair: the first operand is the upper half. value: relu.
template <auto kNarrow, int kShift>
void pack(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  const bool relu = in.value != 0;
  const auto get = [relu](uint32_t bits) {
    const float v = std::bit_cast<float>(bits);
    return relu && v <= 0 ? 0.0F : v;
  };
  fill_row(w.exec, row<uint32_t>(w, in.d),
           [&](int i) -> uint32_t { return kNarrow(get(a[i])) << kShift | kNarrow(get(b[i])); });
}

uint32_t bf16_bits(uint32_t v) { return float_to_bf16(std::bit_cast<float>(v)); }
uint32_t f16_bits(uint32_t v) { return float_to_f16(std::bit_cast<float>(v)); }
uint32_t bf16_float(uint32_t v) { return v << 16; }
uint32_t f16_float(uint32_t v) { return std::bit_cast<uint32_t>(f16_to_float(v & 0xffff)); }
template <auto kWiden>
uint32_t widen_pair(uint32_t v) {
  return float_to_f16(kWiden(v & 0xff)) | float_to_f16(kWiden(v >> 8 & 0xff)) << 16;
}
template <auto kNarrow>
uint32_t narrow_pair(uint32_t v) {
  return kNarrow(f16_to_float(v & 0xffff)) | kNarrow(f16_to_float(v >> 16)) << 8;
}

Run narrow_run(Type from, Type to) {
  if (from == Type::kF32 && to == Type::kBf16) return &bits_1<bf16_bits>;
  if (from == Type::kF32 && to == Type::kF16) return &bits_1<f16_bits>;
  if (from == Type::kBf16 && to == Type::kF32) return &bits_1<bf16_float>;
  if (from == Type::kF16 && to == Type::kF32) return &bits_1<f16_float>;
  if (from == Type::kE4m3x2 && to == Type::kF16x2) return &bits_1<widen_pair<e4m3_to_float>>;
  if (from == Type::kE5m2x2 && to == Type::kF16x2) return &bits_1<widen_pair<e5m2_to_float>>;
  if (from == Type::kF16x2 && to == Type::kE4m3x2) return &bits_1<narrow_pair<float_to_e4m3>>;
  if (from == Type::kF16x2 && to == Type::kE5m2x2) return &bits_1<narrow_pair<float_to_e5m2>>;
  return nullptr;
}
Run pack_run(Type to) {
  switch (to) {
    case Type::kBf16x2:
      return &pack<float_to_bf16, 16>;
    case Type::kF16x2:
      return &pack<float_to_f16, 16>;
    case Type::kE4m3x2:
      return &pack<float_to_e4m3, 8>;
    case Type::kE5m2x2:
      return &pack<float_to_e5m2, 8>;
    default:
      return nullptr;
  }
}

bool is_float(Type t) { return t == Type::kF32 || t == Type::kF64; }

}  // namespace

bool bind_convert(Binder& b) {
  if (b.op() != "cvt") return false;
  const std::vector<Type> types = b.types();
  if (types.size() != 2) return false;
  const auto [to, from] = std::pair(types[0], types[1]);
  b.in.d = b.write(b.operand(0));
  if (b.operands() == 3) {  // a pair from two floats
    if (from != Type::kF32 || b.has("rz")) return false;
    b.in.a = b.read(b.operand(1), false);
    b.in.b = b.read(b.operand(2), false);
    b.in.value = b.has("relu") ? 1 : 0;
    b.in.run = pack_run(to);
    return b.in.run != nullptr;
  }
  const bool directed = b.has("rz") || b.has("rm") || b.has("rp");
  const bool whole = b.has("rni") || b.has("rzi") || b.has("rmi") || b.has("rpi");
  if (directed || b.has("relu")) return false;
  b.in.value = b.has("rzi") ? kZero : b.has("rmi") ? kDown : b.has("rpi") ? kUp : kNearest;
  if (const Run run = narrow_run(from, to); run != nullptr) {
    b.in.run = run;
    b.in.a = b.read(b.operand(1), false);
    return !b.has("sat");
  }
  // Immediates have the width of the source's type.
  b.in.a = b.operand(1).kind == Operand::Kind::kRegister ? b.any_width(b.operand(1))
                                                         : b.read(b.operand(1), bytes_of(from) == 8);
  b.in.run = scalar_run(from, to, whole, b.has("sat"));
  if (is_float(from) && !is_float(to) && !whole) return false;
  return b.in.run != nullptr;
}

}  // namespace ptx
