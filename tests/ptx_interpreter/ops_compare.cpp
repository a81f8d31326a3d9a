// setp, set, selp, slct.
#include "binder.hpp"
#include "numbers.hpp"

namespace ptx {
namespace {

enum class Cmp { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
constexpr std::string_view kNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                       "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

template <Cmp kCmp, class T>
bool compare(T a, T b) {
  const bool unordered = a != a || b != b;
  switch (kCmp) {
    case Cmp::kEq:
      return a == b;
    case Cmp::kNe:
      return !unordered && a != b;
    case Cmp::kLt:
      return a < b;
    case Cmp::kLe:
      return a <= b;
    case Cmp::kGt:
      return a > b;
    case Cmp::kGe:
      return a >= b;
    case Cmp::kEqu:
      return unordered || a == b;
    case Cmp::kNeu:
      return a != b;
    case Cmp::kLtu:
      return !(a >= b);
    case Cmp::kLeu:
      return !(a > b);
    case Cmp::kGtu:
      return !(a <= b);
    case Cmp::kGeu:
      return !(a < b);
    case Cmp::kNum:
      return !unordered;
    case Cmp::kNan:
      return unordered;
  }
}

// How a lane's bits become what is compared.
template <class T>
struct Plain {
  using Lane = Bits<T>;
  static T get(Lane bits) { return value_of<T>(bits); }
};
template <class F, int kShift>
struct Half {
  using Lane = uint32_t;
  static float get(uint32_t bits) { return F::widen(bits >> kShift & 0xffff); }
};

template <Cmp kCmp, class View>
Mask compare_rows(Warp& w, const Instruction& in) {
  const auto* a = row<typename View::Lane>(w, in.a);
  const auto* b = row<typename View::Lane>(w, in.b);
  Mask yes = 0;
  for (int i = 0; i < kLanes; ++i) yes |= static_cast<Mask>(compare<kCmp>(View::get(a[i]), View::get(b[i]))) << i;
  return yes;
}

using Compare = Mask (*)(Warp&, const Instruction&);

template <class View>
Compare compare_of(Cmp cmp) {
  static constexpr Compare kAll[] = {
      &compare_rows<Cmp::kEq, View>,  &compare_rows<Cmp::kNe, View>,  &compare_rows<Cmp::kLt, View>,
      &compare_rows<Cmp::kLe, View>,  &compare_rows<Cmp::kGt, View>,  &compare_rows<Cmp::kGe, View>,
      &compare_rows<Cmp::kEqu, View>, &compare_rows<Cmp::kNeu, View>, &compare_rows<Cmp::kLtu, View>,
      &compare_rows<Cmp::kLeu, View>, &compare_rows<Cmp::kGtu, View>, &compare_rows<Cmp::kGeu, View>,
      &compare_rows<Cmp::kNum, View>, &compare_rows<Cmp::kNan, View>};
  return kAll[static_cast<int>(cmp)];
}
// Of the low half of a pair, or of the upper one.
Compare compare_of(Type type, Cmp cmp, bool upper) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return compare_of<Plain<uint16_t>>(cmp);
    case Type::kS16:
      return compare_of<Plain<int16_t>>(cmp);
    case Type::kB32:
    case Type::kU32:
      return compare_of<Plain<uint32_t>>(cmp);
    case Type::kS32:
      return compare_of<Plain<int32_t>>(cmp);
    case Type::kB64:
    case Type::kU64:
      return compare_of<Plain<uint64_t>>(cmp);
    case Type::kS64:
      return compare_of<Plain<int64_t>>(cmp);
    case Type::kF32:
      return compare_of<Plain<float>>(cmp);
    case Type::kF64:
      return compare_of<Plain<double>>(cmp);
    case Type::kBf16:
      return compare_of<Half<Bf16, 0>>(cmp);
    case Type::kF16:
      return compare_of<Half<F16, 0>>(cmp);
    case Type::kBf16x2:
      return upper ? compare_of<Half<Bf16, 16>>(cmp) : compare_of<Half<Bf16, 0>>(cmp);
    case Type::kF16x2:
      return upper ? compare_of<Half<F16, 16>>(cmp) : compare_of<Half<F16, 0>>(cmp);
    default:
      return nullptr;
  }
}

// With a third operand: the result and, or, xor that predicate.
enum Combine : int64_t { kNone, kAnd, kOr, kXor };
Mask combined(Warp& w, const Instruction& in, Mask v) {
  if (in.value == kNone) return v;
  const Mask c = read_mask(w, in.c);
  return in.value == kAnd ? v & c : in.value == kOr ? v | c : v ^ c;
}

Compare compare_in(const Instruction& in, int i) {
  return reinterpret_cast<Compare>(static_cast<uintptr_t>(in.extra->numbers[i]));
}

void setp(Warp& w, const Instruction& in) {
  const Mask yes = compare_in(in, 0)(w, in);
  const Mask c = combined(w, in, yes);
  if (!in.extra->d.empty()) write_mask(w, in.extra->d[0], combined(w, in, ~yes));
  write_mask(w, in.d, c);
}
void setp_pair(Warp& w, const Instruction& in) {  // p of the low halves, q of the upper ones
  const Mask low = compare_in(in, 0)(w, in);
  const Mask high = compare_in(in, 1)(w, in);
  const Mask p = combined(w, in, low);
  const Mask q = combined(w, in, high);
  write_mask(w, in.d, p);
  write_mask(w, in.extra->d[0], q);
}
// value of "true": all ones or 1.0 of the result's type, in numbers[2]
void set(Warp& w, const Instruction& in) {
  const Mask yes = combined(w, in, compare_in(in, 0)(w, in));
  const auto one = static_cast<uint32_t>(in.extra->numbers[2]);
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int i) { return (yes >> i & 1) != 0 ? one : 0U; });
}
void set_pair(Warp& w, const Instruction& in) {
  const Mask low = combined(w, in, compare_in(in, 0)(w, in));
  const Mask high = combined(w, in, compare_in(in, 1)(w, in));
  const auto one = static_cast<uint32_t>(in.extra->numbers[2]);
  fill_row(w.exec, row<uint32_t>(w, in.d),
           [&](int i) { return ((low >> i & 1) != 0 ? one : 0U) | ((high >> i & 1) != 0 ? one : 0U) << 16; });
}

template <class C>
void selp(Warp& w, const Instruction& in) {
  const Mask yes = read_mask(w, in.c);
  const C* a = row<C>(w, in.a);
  const C* b = row<C>(w, in.b);
  fill_row(w.exec, row<C>(w, in.d), [&](int i) { return (yes >> i & 1) != 0 ? a[i] : b[i]; });
}
template <class C, class T>
void slct(Warp& w, const Instruction& in) {
  const C* a = row<C>(w, in.a);
  const C* b = row<C>(w, in.b);
  const uint32_t* c = row<uint32_t>(w, in.c);
  fill_row(w.exec, row<C>(w, in.d), [&](int i) { return value_of<T>(c[i]) >= 0 ? a[i] : b[i]; });
}

bool bind_comparison(Binder& b, Type type, size_t first) {
  // lo, ls, hi, hs are the names of lt, le, gt, ge for unsigned numbers.
  constexpr std::pair<std::string_view, Cmp> kUnsigned[] = {
      {"lo", Cmp::kLt}, {"ls", Cmp::kLe}, {"hi", Cmp::kGt}, {"hs", Cmp::kGe}};
  const std::string_view name = b.parts[1];
  int cmp = -1;
  for (size_t i = 0; i < std::size(kNames); ++i) cmp = kNames[i] == name ? static_cast<int>(i) : cmp;
  for (const auto& [alias, of] : kUnsigned) cmp = alias == name ? static_cast<int>(of) : cmp;
  if (cmp < 0) return false;
  const bool wide = bytes_of(type) == 8;
  Extra& extra = b.extra();
  for (int i = 0; i < 2; ++i) {
    const Compare of = compare_of(type, static_cast<Cmp>(cmp), i == 1);
    if (of == nullptr) return false;
    extra.numbers[i] = static_cast<int64_t>(reinterpret_cast<uintptr_t>(of));
  }
  b.in.a = b.read(b.operand(first), wide);
  b.in.b = b.read(b.operand(first + 1), wide);
  if (b.operands() > first + 2) {
    b.in.c = b.predicate(b.operand(first + 2));
    b.in.value = b.has("and") ? kAnd : b.has("or") ? kOr : kXor;
  }
  return true;
}

bool is_pair(Type t) { return t == Type::kBf16x2 || t == Type::kF16x2; }

bool bind_setp(Binder& b) {
  if (!bind_comparison(b, b.type, 1)) return false;
  b.in.d = b.predicate(b.operand(0));
  if (!b.operand(0).parts.empty()) b.extra().d = {b.predicate(b.operand(0).parts[0])};
  b.in.run = is_pair(b.type) ? &setp_pair : &setp;
  return true;
}

bool bind_set(Binder& b) {  // set.cmp.result.type
  const std::vector<Type> types = b.types();
  if (types.size() != 2 || !bind_comparison(b, types[1], 1)) return false;
  int64_t one = 0xffffffff;
  if (types[0] == Type::kF32) one = 0x3f800000;
  if (types[0] == Type::kBf16 || types[0] == Type::kBf16x2) one = 0x3f80;
  if (types[0] == Type::kF16 || types[0] == Type::kF16x2) one = 0x3c00;
  if (is_pair(types[1]) && one == 0xffffffff) one = 0xffff;
  b.extra().numbers[2] = one;
  b.in.d = b.write(b.operand(0));
  b.in.run = is_pair(types[1]) ? &set_pair : &set;
  return true;
}

}  // namespace

bool bind_compare(Binder& b) {
  if (b.op() == "setp") return bind_setp(b);
  if (b.op() == "set") return bind_set(b);
  const bool wide = bytes_of(b.op() == "slct" && b.parts.size() > 2 ? type_of(b.parts[1]) : b.type) == 8;
  if (b.op() != "selp" && b.op() != "slct") return false;
  b.in.d = b.write(b.operand(0));
  b.in.a = b.read(b.operand(1), wide);
  b.in.b = b.read(b.operand(2), wide);
  if (b.op() == "selp") {
    b.in.c = b.predicate(b.operand(3));
    b.in.run = wide ? &selp<uint64_t> : &selp<uint32_t>;
    return true;
  }
  b.in.c = b.read(b.operand(3), false);
  if (b.type == Type::kF32)
    b.in.run = wide ? &slct<uint64_t, float> : &slct<uint32_t, float>;
  else
    b.in.run = wide ? &slct<uint64_t, int32_t> : &slct<uint32_t, int32_t>;
  return true;
}

}  // namespace ptx
