// mov, cvta, isspacep: bits from one register to others.
#include "binder.hpp"

namespace ptx {
namespace {

template <class C>
void mov(Warp& w, const Instruction& in) {
  const C* a = row<C>(w, in.a);
  fill_row(w.exec, row<C>(w, in.d), [&](int i) { return a[i]; });
}
void mov_predicate(Warp& w, const Instruction& in) { write_mask(w, in.d, read_mask(w, in.a)); }

// One register from the parts of a vector, first part lowest; numbers[0]: bits of a part.
void join(Warp& w, const Instruction& in) {
  const int bits = static_cast<int>(in.extra->numbers[0]);
  const uint64_t ones = bits == 32 ? 0xffffffffU : (uint64_t{1} << bits) - 1;
  each_lane(w.exec, [&](int i) {
    uint64_t v = 0;
    int at = 0;
    for (const Slot s : in.extra->a) {
      v |= (read_lane(w, s, i) & ones) << at;
      at += bits;
    }
    write_lane(w, in.d, i, v);
  });
}
void split(Warp& w, const Instruction& in) {
  const int bits = static_cast<int>(in.extra->numbers[0]);
  const uint64_t ones = bits == 32 ? 0xffffffffU : (uint64_t{1} << bits) - 1;
  each_lane(w.exec, [&](int i) {
    uint64_t v = read_lane(w, in.a, i);
    for (const Slot s : in.extra->d) {
      write_lane(w, s, i, v & ones);
      v >>= bits;
    }
  });
}

// To a generic address, and back.
void to_generic(Warp& w, const Instruction& in) {
  const auto base = static_cast<uint64_t>(in.value);
  each_lane(w.exec, [&](int i) { write_lane(w, in.d, i, read_lane(w, in.a, i) | base); });
}
void from_generic(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) {
    const uint64_t v = read_lane(w, in.a, i);
    const auto window = static_cast<uint64_t>(in.value) >> kWindowShift;
    if (v >> kWindowShift != window) w.fail("cvta.to: the address is in another space", i);
    write_lane(w, in.d, i, v & ((uint64_t{1} << kWindowShift) - 1));
  });
}
void isspacep(Warp& w, const Instruction& in) {
  Mask yes = 0;
  each_lane(w.exec, [&](int i) {
    if (read_lane(w, in.a, i) >> kWindowShift == static_cast<uint64_t>(in.value)) yes |= Mask{1} << i;
  });
  write_mask(w, in.d, yes);
}

int64_t window_of(Binder& b) {
  if (b.has("shared") || b.has("shared::cta") || b.has("shared::cluster")) return static_cast<int64_t>(Window::kShared);
  if (b.has("local")) return static_cast<int64_t>(Window::kLocal);
  if (b.has("param")) return static_cast<int64_t>(Window::kParam);
  return static_cast<int64_t>(Window::kGlobal);
}

bool bind_mov(Binder& b) {
  const Operand& from = b.operand(1);
  if (b.type == Type::kPred) {
    b.in.run = &mov_predicate;
    b.in.d = b.predicate(b.operand(0));
    b.in.a = b.predicate(from);
    return true;
  }
  const bool wide = bytes_of(b.type) == 8;
  if (from.kind == Operand::Kind::kVector) {
    b.in.run = &join;
    b.in.d = b.write(b.operand(0));
    for (const Operand& part : from.parts) {
      b.extra().a.push_back(part.kind == Operand::Kind::kImmediate ? b.read(part, false) : b.any_width(part));
    }
    b.extra().numbers[0] = 8 * bytes_of(b.type) / static_cast<int64_t>(from.parts.size());
    return true;
  }
  if (b.operand(0).kind == Operand::Kind::kVector) {
    b.in.run = &split;
    b.in.a = b.read(from, wide);
    for (const Operand& part : b.operand(0).parts) b.extra().d.push_back(b.write(part));
    b.extra().numbers[0] = 8 * bytes_of(b.type) / static_cast<int64_t>(b.operand(0).parts.size());
    return true;
  }
  b.in.run = wide ? &mov<uint64_t> : &mov<uint32_t>;
  return b.plain(2, wide);
}

}  // namespace

bool bind_move(Binder& b) {
  if (b.op() == "mov") return b.type != Type::kB128 && bind_mov(b);
  if (b.op() == "cvta") {
    b.in.value = window_of(b) << kWindowShift;
    b.in.d = b.write(b.operand(0));
    b.in.a = b.read(b.operand(1), bytes_of(b.type) == 8);
    b.in.run = b.has("to") ? &from_generic : &to_generic;
    return true;
  }
  if (b.op() == "isspacep") {
    b.in.value = window_of(b);
    b.in.d = b.predicate(b.operand(0));
    b.in.a = b.any_width(b.operand(1));
    b.in.run = &isspacep;
    return true;
  }
  return false;
}

}  // namespace ptx
