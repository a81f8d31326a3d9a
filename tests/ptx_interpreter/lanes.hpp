// Rows of 32 lanes, and loops over them that a compiler turns into vector code.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "machine.hpp"

namespace ptx {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

// Bits of a lane: 32, or 64 for what needs them. Narrow values are kept zero-extended.
template <class T>
using Bits = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;

template <class T>
T value_of(Bits<T> bits) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<T>(bits);
  } else {
    return static_cast<T>(bits);
  }
}
template <class T>
Bits<T> bits_of(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<Bits<T>>(value);
  } else {
    return static_cast<Bits<T>>(static_cast<std::make_unsigned_t<T>>(value));
  }
}

template <class T>
T* row(Warp& w, Slot s) {
  return reinterpret_cast<T*>(w.base[s.constant ? 1 : 0] + s.offset);
}
inline Mask read_mask(Warp& w, Slot s) { return s.negated ? ~*row<Mask>(w, s) : *row<Mask>(w, s); }
inline void write_mask(Warp& w, Slot s, Mask value) {
  if (s.sink) return;
  Mask& to = *row<Mask>(w, s);
  to = (to & ~w.exec) | (value & w.exec);
}
inline uint64_t read_lane(Warp& w, Slot s, int lane) {
  return s.wide ? row<uint64_t>(w, s)[lane] : row<uint32_t>(w, s)[lane];
}
inline void write_lane(Warp& w, Slot s, int lane, uint64_t value) {
  if (s.sink) return;
  if (s.wide) {
    row<uint64_t>(w, s)[lane] = value;
  } else {
    row<uint32_t>(w, s)[lane] = static_cast<uint32_t>(value);
  }
}

template <class F>
void each_lane(Mask mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

// d[lane] = f(lane) where the lane takes part.
template <class C, class F>
inline void fill_row(Mask mask, C* d, F f) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) d[i] = f(i);
  } else {
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) {
      const C v = f(i);
      d[i] = (mask >> i & 1) != 0 ? v : d[i];
    }
  }
}

// Op::apply of one, two, three operands of type T; R: of the result.
template <class Op, class T, class R = T>
void unary(Warp& w, const Instruction& in) {
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  fill_row(w.exec, row<Bits<R>>(w, in.d), [&](int i) { return bits_of<R>(Op::apply(value_of<T>(a[i]))); });
}
template <class Op, class T, class R = T>
void binary(Warp& w, const Instruction& in) {
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  const Bits<T>* b = row<Bits<T>>(w, in.b);
  fill_row(w.exec, row<Bits<R>>(w, in.d),
           [&](int i) { return bits_of<R>(Op::apply(value_of<T>(a[i]), value_of<T>(b[i]))); });
}
template <class Op, class T, class R = T>
void ternary(Warp& w, const Instruction& in) {
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  const Bits<T>* b = row<Bits<T>>(w, in.b);
  const Bits<R>* c = row<Bits<R>>(w, in.c);
  fill_row(w.exec, row<Bits<R>>(w, in.d),
           [&](int i) { return bits_of<R>(Op::apply(value_of<T>(a[i]), value_of<T>(b[i]), value_of<R>(c[i]))); });
}

}  // namespace ptx
