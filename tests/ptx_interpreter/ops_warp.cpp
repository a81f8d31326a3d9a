// Exchange within a warp: shfl, vote, match, redux, elect, bar.warp.sync.
#include <algorithm>

#include "binder.hpp"

namespace ptx {
namespace {

// The member mask of the lanes that execute; all of them must name the same.
Mask members(Warp& w, Slot s) {
  const auto* m = row<Mask>(w, s);
  const int first = std::countr_zero(w.exec);
  each_lane(w.exec, [&](int i) {
    if (m[i] != m[first]) w.fail("lanes that execute together name different member masks", i);
    if ((m[i] >> i & 1) == 0) w.fail("a lane that executes is not in its member mask", i);
  });
  return m[first];
}

enum Direction : int64_t { kUp, kDown, kButterfly, kIndex };

void shfl(Warp& w, const Instruction& in) {
  const Mask member = in.extra->c.empty() ? kAllLanes : members(w, in.extra->c[0]);
  if (!w.together(member)) return;
  uint32_t from[kLanes];
  std::copy_n(row<uint32_t>(w, in.a), kLanes, from);
  const auto* by = row<uint32_t>(w, in.b);
  const auto* clamp = row<uint32_t>(w, in.c);
  Mask valid = 0;
  const auto source = [&](int i) {
    const int b = static_cast<int>(by[i] & 31);
    const int c = static_cast<int>(clamp[i] & 31);
    const int segment = static_cast<int>(clamp[i] >> 8 & 31);
    const int last = (i & segment) | (c & ~segment);
    const int first = i & segment;
    int j = 0;
    bool ok = false;
    switch (in.value) {
      case kUp:
        j = i - b;
        ok = j >= last;
        break;
      case kDown:
        j = i + b;
        ok = j <= last;
        break;
      case kButterfly:
        j = i ^ b;
        ok = j <= last;
        break;
      default:
        j = first | (b & ~segment);
        ok = j <= last;
    }
    if (ok) valid |= Mask{1} << i;
    return ok ? j : i;
  };
  each_lane(w.exec, [&](int i) {
    const int j = source(i);
    if ((w.exec >> j & 1) == 0) w.fail("shfl reads a lane that does not take part: " + std::to_string(j), i);
    write_lane(w, in.d, i, from[j]);
  });
  if (!in.extra->d.empty()) write_mask(w, in.extra->d[0], valid);
}

enum Vote : int64_t { kAll, kAny, kUni, kBallot };
void vote(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in.b))) return;
  const Mask yes = read_mask(w, in.a) & w.exec;
  if (in.value == kBallot) {
    fill_row(w.exec, row<uint32_t>(w, in.d), [&](int) { return yes; });
    return;
  }
  const bool all = yes == w.exec;
  const bool is[] = {all, yes != 0, all || yes == 0};
  write_mask(w, in.d, is[in.value] ? kAllLanes : 0);
}

void activemask(Warp& w, const Instruction& in) {
  const Mask active = w.exec;
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int) { return active; });
}

void elect(Warp& w, const Instruction& in) {
  const Mask member = members(w, in.a);
  if (!w.together(member)) return;
  const auto leader = static_cast<uint32_t>(std::countr_zero(w.exec));
  if (!in.d.sink) fill_row(w.exec, row<uint32_t>(w, in.d), [&](int) { return leader; });
  write_mask(w, in.extra->d[0], Mask{1} << leader);
}

template <bool kAllEqual>
void match(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in.b))) return;
  Mask same[kLanes] = {};
  bool all = true;
  each_lane(w.exec, [&](int i) {
    each_lane(w.exec, [&](int j) {
      if (read_lane(w, in.a, i) == read_lane(w, in.a, j)) same[i] |= Mask{1} << j;
    });
    all = all && same[i] == w.exec;
  });
  each_lane(w.exec, [&](int i) { write_lane(w, in.d, i, kAllEqual ? (all ? w.exec : 0) : same[i]); });
  if (kAllEqual && !in.extra->d.empty()) write_mask(w, in.extra->d[0], all ? kAllLanes : 0);
}

enum Reduction : int64_t { kAdd, kMin, kMax, kAnd, kOr, kXor };
template <class T>
void redux(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in.b))) return;
  const auto* a = row<uint32_t>(w, in.a);
  T r = static_cast<T>(a[std::countr_zero(w.exec)]);
  each_lane(w.exec & (w.exec - 1), [&](int i) {
    const T v = static_cast<T>(a[i]);
    const T all[] = {static_cast<T>(static_cast<uint32_t>(r) + static_cast<uint32_t>(v)),
                     std::min(r, v),
                     std::max(r, v),
                     r & v,
                     r | v,
                     r ^ v};
    r = all[in.value];
  });
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int) { return static_cast<uint32_t>(r); });
}

void warp_barrier(Warp& w, const Instruction& in) {
  const Mask member = members(w, in.a);
  if ((member & w.alive & ~w.exec) == 0) return;
  // Threads of a warp may wait at different places.
  w.park(Wait::kWarpBarrier, w.pc, member);
}

int64_t which(const Binder& b, std::initializer_list<std::string_view> names) {
  int64_t i = 0;
  for (const auto name : names) {
    if (b.has(name)) return i;
    ++i;
  }
  return -1;
}

bool bind_shfl(Binder& b) {
  b.in.value = which(b, {"up", "down", "bfly", "idx"});
  b.in.run = &shfl;
  const Operand& d = b.operand(0);
  b.in.d = b.write(d);
  b.extra();
  if (!d.parts.empty()) b.extra().d = {b.predicate(d.parts[0])};
  b.in.a = b.read(b.operand(1), false);
  b.in.b = b.read(b.operand(2), false);
  b.in.c = b.read(b.operand(3), false);
  if (b.has("sync")) b.extra().c = {b.read(b.operand(4), false)};
  return b.in.value >= 0;
}

}  // namespace

bool bind_warp(Binder& b) {
  const auto op = b.op();
  if (op == "shfl") return bind_shfl(b);
  if (op == "vote" && b.has("sync")) {
    b.in.value = which(b, {"all", "any", "uni", "ballot"});
    b.in.d = b.in.value == kBallot ? b.write(b.operand(0)) : b.predicate(b.operand(0));
    b.in.a = b.predicate(b.operand(1));
    b.in.b = b.read(b.operand(2), false);
    b.in.run = &vote;
  }
  if (op == "activemask") {
    b.in.d = b.write(b.operand(0));
    b.in.run = &activemask;
  }
  if (op == "elect") {
    b.in.d = b.write(b.operand(0));
    b.extra().d = {b.predicate(b.operand(0).parts.at(0))};
    b.in.a = b.read(b.operand(1), false);
    b.in.run = &elect;
  }
  if (op == "match") {
    b.extra();
    b.in.d = b.write(b.operand(0));
    if (!b.operand(0).parts.empty()) b.extra().d = {b.predicate(b.operand(0).parts[0])};
    b.in.a = b.read(b.operand(1), bytes_of(b.type) == 8);
    b.in.b = b.read(b.operand(2), false);
    b.in.run = b.has("all") ? &match<true> : &match<false>;
  }
  if (op == "redux") {
    b.in.value = which(b, {"add", "min", "max", "and", "or", "xor"});
    b.in.run = b.type == Type::kS32 ? &redux<int32_t> : &redux<uint32_t>;
    b.in.b = b.read(b.operand(2), false);
    return b.in.value >= 0 && b.type != Type::kF32 && b.plain(2, false);
  }
  if (op == "bar" && b.has("warp")) {
    b.in.a = b.read(b.operand(0), false);
    b.in.run = &warp_barrier;
  }
  return b.in.run != nullptr;
}

}  // namespace ptx
