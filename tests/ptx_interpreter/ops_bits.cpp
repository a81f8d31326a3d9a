// Logic, shifts and bit fields.
#include <algorithm>

#include "binder.hpp"

namespace ptx {
namespace {

struct And {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  static T apply(T a) {
    return static_cast<T>(~a);
  }
};
struct CNot {
  template <class T>
  static T apply(T a) {
    return a == 0 ? 1 : 0;
  }
};

enum class Logic { kAnd, kOr, kXor, kNot };
template <Logic kLogic>
void of_predicates(Warp& w, const Instruction& in) {
  const Mask a = read_mask(w, in.a);
  const Mask b = kLogic == Logic::kNot ? 0 : read_mask(w, in.b);
  Mask d = ~a;
  if (kLogic == Logic::kAnd) d = a & b;
  if (kLogic == Logic::kOr) d = a | b;
  if (kLogic == Logic::kXor) d = a ^ b;
  write_mask(w, in.d, d);
}

// The amount is 32 bits whatever T is; amounts beyond the width shift everything out.
template <class T, bool kLeft>
void shift(Warp& w, const Instruction& in) {
  constexpr uint32_t kWidth = 8 * sizeof(T);
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  fill_row(w.exec, row<Bits<T>>(w, in.d), [&](int i) {
    const uint32_t by = b[i] < kWidth ? b[i] : kWidth - 1;
    const T v = value_of<T>(a[i]);
    const auto shifted = static_cast<T>(kLeft ? static_cast<Bits<T>>(v) << by : static_cast<Bits<T>>(v >> by));
    const T beyond = kLeft || v >= 0 ? T{0} : static_cast<T>(-1);
    return bits_of<T>(b[i] < kWidth ? shifted : beyond);
  });
}
template <class Left, class T>
void shift_run(Warp& w, const Instruction& in) {
  shift<T, Left::value>(w, in);
}

template <bool kLeft, bool kWrap>
void funnel(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  const uint32_t* c = row<uint32_t>(w, in.c);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) {
    const uint32_t by = kWrap ? c[i] & 31 : std::min<uint32_t>(c[i], 32);
    const uint64_t both = static_cast<uint64_t>(b[i]) << 32 | a[i];
    return static_cast<uint32_t>(kLeft ? (both << by) >> 32 : both >> by);
  });
}

void lop3(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  const uint32_t* c = row<uint32_t>(w, in.c);
  uint32_t take[8];
  for (int k = 0; k < 8; ++k) take[k] = (in.value >> k & 1) != 0 ? ~0U : 0U;
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) {
    const uint32_t x = a[i];
    const uint32_t y = b[i];
    const uint32_t z = c[i];
    return (take[0] & ~x & ~y & ~z) | (take[1] & ~x & ~y & z) | (take[2] & ~x & y & ~z) | (take[3] & ~x & y & z) |
           (take[4] & x & ~y & ~z) | (take[5] & x & ~y & z) | (take[6] & x & y & ~z) | (take[7] & x & y & z);
  });
}

uint32_t permute_byte(uint64_t both, uint32_t selector) {
  const auto byte = static_cast<uint32_t>(both >> (8 * (selector & 7)) & 0xff);
  return (selector & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xff : 0;
}
void prmt(Warp& w, const Instruction& in) {
  const uint32_t* a = row<uint32_t>(w, in.a);
  const uint32_t* b = row<uint32_t>(w, in.b);
  const uint32_t* c = row<uint32_t>(w, in.c);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) {
    const uint64_t both = static_cast<uint64_t>(b[i]) << 32 | a[i];
    const uint32_t s = c[i];
    return permute_byte(both, s) | permute_byte(both, s >> 4) << 8 | permute_byte(both, s >> 8) << 16 |
           permute_byte(both, s >> 12) << 24;
  });
}
// value: f4e, b4e, rc8, ecl, ecr, rc16 = 0 .. 5
void prmt_mode(Warp& w, const Instruction& in) {
  uint32_t* d = row<uint32_t>(w, in.d);
  each_lane(w.exec, [&](int i) {
    const uint64_t both = static_cast<uint64_t>(row<uint32_t>(w, in.b)[i]) << 32 | row<uint32_t>(w, in.a)[i];
    const auto c = static_cast<int>(row<uint32_t>(w, in.c)[i] & 3);
    uint32_t r = 0;
    for (int k = 0; k < 4; ++k) {
      const int from[] = {c + k, (c - k) & 7, c, std::max(k, c), std::min(k, c), (c & 1) * 2 + k % 2};
      r |= static_cast<uint32_t>(both >> (8 * from[in.value]) & 0xff) << (8 * k);
    }
    d[i] = r;
  });
}

template <class T>
void bfe(Warp& w, const Instruction& in) {
  constexpr int kWidth = 8 * sizeof(T);
  Bits<T>* d = row<Bits<T>>(w, in.d);
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  each_lane(w.exec, [&](int i) {
    const int at = static_cast<int>(row<uint32_t>(w, in.b)[i] & 0xff);
    const int length = static_cast<int>(row<uint32_t>(w, in.c)[i] & 0xff);
    const int top = std::min(at + length - 1, kWidth - 1);
    const bool sign = std::is_signed_v<T> && length > 0 && (a[i] >> top & 1) != 0;
    Bits<T> v = sign ? ~Bits<T>{0} : Bits<T>{0};
    for (int k = 0; k < length && k < kWidth && at + k < kWidth; ++k) {
      const Bits<T> bit = Bits<T>{1} << k;
      v = (a[i] >> (at + k) & 1) != 0 ? v | bit : v & ~bit;
    }
    d[i] = v;
  });
}
template <class T>
void bfi(Warp& w, const Instruction& in) {
  constexpr int kWidth = 8 * sizeof(T);
  const T* a = row<T>(w, in.a);
  const T* b = row<T>(w, in.b);
  const uint32_t* at = row<uint32_t>(w, in.c);
  const uint32_t* length = row<uint32_t>(w, in.extra->c[0]);
  T* d = row<T>(w, in.d);
  each_lane(w.exec, [&](int i) {
    const uint32_t from = at[i] & 0xff;
    const uint32_t bits = length[i] & 0xff;
    if (from >= kWidth || bits == 0) {
      d[i] = b[i];
      return;
    }
    const T ones = bits >= kWidth ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << bits) - 1);
    d[i] = static_cast<T>((b[i] & ~(ones << from)) | ((a[i] & ones) << from));
  });
}

enum class Count { kPopc, kClz, kBrev, kFindMsb, kFindShift };
template <class T, Count kCount>
void count_bits(Warp& w, const Instruction& in) {
  const Bits<T>* a = row<Bits<T>>(w, in.a);
  each_lane(w.exec, [&](int i) {
    Bits<T> v = a[i];
    uint64_t r = 0;
    if (kCount == Count::kPopc) r = static_cast<uint64_t>(std::popcount(v));
    if (kCount == Count::kClz) r = static_cast<uint64_t>(std::countl_zero(v));
    if (kCount == Count::kBrev) {
      for (size_t k = 0; k < 8 * sizeof(T); ++k) r = r << 1 | (v >> k & 1);
    }
    if (kCount == Count::kFindMsb || kCount == Count::kFindShift) {
      if (std::is_signed_v<T> && value_of<T>(v) < 0) v = ~v;
      const auto zeros = static_cast<uint32_t>(std::countl_zero(v));
      r = v == 0 ? 0xffffffffU : kCount == Count::kFindShift ? zeros : 8 * sizeof(T) - 1 - zeros;
    }
    write_lane(w, in.d, i, r);
  });
}
template <Count kCount>
Run count_run(Type t) {
  switch (t) {
    case Type::kS32:
      return &count_bits<int32_t, kCount>;
    case Type::kS64:
      return &count_bits<int64_t, kCount>;
    case Type::kU32:
    case Type::kB32:
      return &count_bits<uint32_t, kCount>;
    case Type::kU64:
    case Type::kB64:
      return &count_bits<uint64_t, kCount>;
    default:
      return nullptr;
  }
}

bool bind_logic(Binder& b) {
  const auto op = b.op();
  if (b.type == Type::kPred) {
    b.in.d = b.predicate(b.operand(0));
    b.in.a = b.predicate(b.operand(1));
    if (op == "not") b.in.run = &of_predicates<Logic::kNot>;
    if (op != "not") b.in.b = b.predicate(b.operand(2));
    if (op == "and") b.in.run = &of_predicates<Logic::kAnd>;
    if (op == "or") b.in.run = &of_predicates<Logic::kOr>;
    if (op == "xor") b.in.run = &of_predicates<Logic::kXor>;
    return true;
  }
  if (op == "and") b.in.run = PTX_INTEGER_RUN(binary, And, b.type);
  if (op == "or") b.in.run = PTX_INTEGER_RUN(binary, Or, b.type);
  if (op == "xor") b.in.run = PTX_INTEGER_RUN(binary, Xor, b.type);
  if (op == "not") b.in.run = PTX_INTEGER_RUN(unary, Not, b.type);
  if (op == "cnot") b.in.run = PTX_INTEGER_RUN(unary, CNot, b.type);
  return b.plain(op == "not" || op == "cnot" ? 2 : 3, bytes_of(b.type) == 8);
}

bool bind_prmt(Binder& b) {
  constexpr std::string_view kModes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  b.in.run = &prmt;
  for (size_t mode = 0; mode < std::size(kModes); ++mode) {
    if (!b.has(kModes[mode])) continue;
    b.in.run = &prmt_mode;
    b.in.value = static_cast<int64_t>(mode);
  }
  return b.plain(4, false);
}

bool bind_fields(Binder& b) {
  const bool wide = bytes_of(b.type) == 8;
  b.in.d = b.write(b.operand(0));
  b.in.a = b.read(b.operand(1), wide);
  if (b.op() == "bfi") {
    b.in.b = b.read(b.operand(2), wide);
    b.in.c = b.read(b.operand(3), false);
    b.extra().c = {b.read(b.operand(4), false)};
    b.in.run = wide ? &bfi<uint64_t> : &bfi<uint32_t>;
    return true;
  }
  b.in.b = b.read(b.operand(2), false);
  if (b.op() == "bfe") {
    b.in.c = b.read(b.operand(3), false);
    if (b.type == Type::kS32) b.in.run = &bfe<int32_t>;
    if (b.type == Type::kU32) b.in.run = &bfe<uint32_t>;
    if (b.type == Type::kS64) b.in.run = &bfe<int64_t>;
    if (b.type == Type::kU64) b.in.run = &bfe<uint64_t>;
    return b.in.run != nullptr;
  }
  if (b.op() == "shl") b.in.run = PTX_INTEGER_RUN(shift_run, std::true_type, b.type);
  if (b.op() == "shr") b.in.run = PTX_INTEGER_RUN(shift_run, std::false_type, b.type);
  return b.in.run != nullptr;
}

bool bind_counts(Binder& b) {
  const auto op = b.op();
  if (op == "popc") b.in.run = count_run<Count::kPopc>(b.type);
  if (op == "clz") b.in.run = count_run<Count::kClz>(b.type);
  if (op == "brev") b.in.run = count_run<Count::kBrev>(b.type);
  if (op == "bfind") {
    b.in.run = b.has("shiftamt") ? count_run<Count::kFindShift>(b.type) : count_run<Count::kFindMsb>(b.type);
  }
  b.in.d = b.write(b.operand(0));
  b.in.a = b.read(b.operand(1), bytes_of(b.type) == 8);
  return b.in.run != nullptr;
}

}  // namespace

bool bind_bits(Binder& b) {
  const auto op = b.op();
  if (op == "and" || op == "or" || op == "xor" || op == "not" || op == "cnot") return bind_logic(b);
  if (op == "shl" || op == "shr" || op == "bfe" || op == "bfi") return bind_fields(b);
  if (op == "popc" || op == "clz" || op == "brev" || op == "bfind") return bind_counts(b);
  if (op == "prmt") return bind_prmt(b);
  if (op == "shf") {
    const bool wrap = b.has("wrap");
    if (b.has("l"))
      b.in.run = wrap ? &funnel<true, true> : &funnel<true, false>;
    else
      b.in.run = wrap ? &funnel<false, true> : &funnel<false, false>;
    return b.plain(4, false);
  }
  if (op == "lop3" && b.operands() == 5) {
    b.in.run = &lop3;
    b.in.value = static_cast<int64_t>(b.operand(4).value);
    return b.plain(4, false);
  }
  return false;
}

}  // namespace ptx
