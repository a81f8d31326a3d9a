// Branches, calls, the end of threads.
#include "barriers.hpp"
#include "binder.hpp"

namespace ptx {
namespace {

// Lanes that go elsewhere leave the running group, or all of it goes.
void go(Warp& w, Mask lanes, uint32_t target) {
  if (lanes == w.active) {
    w.pc = target;
  } else {
    w.active &= ~lanes;
    w.others.push_back({target, lanes, Wait::kReady, 0, 0});
  }
  if (!w.others.empty()) w.look();
}

void bra(Warp& w, const Instruction& in) { go(w, w.exec, in.target); }

// Each lane to the place that its register names.
void go_each(Warp& w, Mask lanes, const auto& target_of) {
  while (lanes != 0) {
    const uint32_t target = target_of(std::countr_zero(lanes));
    Mask same = 0;
    each_lane(lanes, [&](int i) { same |= target_of(i) == target ? Mask{1} << i : 0; });
    lanes &= ~same;
    if (same == w.active) {
      w.pc = target;
    } else {
      w.active &= ~same;
      w.others.push_back({target, same, Wait::kReady, 0, 0});
    }
  }
  if (w.active == 0) {
    w.switch_pc = 0;
  } else if (!w.others.empty()) {
    w.look();
  }
}
void brx(Warp& w, const Instruction& in) {
  const auto* index = row<uint32_t>(w, in.a);
  go_each(w, w.exec, [&](int i) {
    if (index[i] >= in.extra->text.size() / 4) w.fail("brx.idx: the index is beyond the list", i);
    uint32_t target = 0;
    std::memcpy(&target, in.extra->text.data() + 4 * size_t{index[i]}, 4);
    return target;
  });
}

// A function keeps, for each lane, where to go back to; parameters were copied by instructions of their own.
void call(Warp& w, const Instruction& in) {
  const uint32_t back = w.pc;
  fill_row(w.exec, row<uint32_t>(w, in.d), [&](int) { return back; });
  go(w, w.exec, in.target);
}
void ret(Warp& w, const Instruction& in) {
  const auto* back = row<uint32_t>(w, in.a);
  go_each(w, w.exec, [&](int i) { return back[i]; });
}
// Bytes of lane memory: from extra numbers[1] to numbers[0], numbers[2] of them.
void copy_param(Warp& w, const Instruction& in) {
  const int64_t* n = in.extra->numbers;
  each_lane(w.exec, [&](int i) {
    uint8_t* lane = w.local.data() + static_cast<size_t>(i) * w.program->local_bytes;
    std::memmove(lane + n[0], lane + n[1], static_cast<size_t>(n[2]));
  });
}

void exit_lanes(Warp& w, const Instruction&) {
  if (w.must_wait) w.fail("a thread ends without griddepcontrol.wait", std::countr_zero(w.exec));
  leave(w, w.exec);
}
void trap(Warp& w, const Instruction&) { w.fail("trap", std::countr_zero(w.exec)); }
void nothing(Warp&, const Instruction&) {}
// Grids run one after the other, so that the one before has ended.
void grid_wait(Warp& w, const Instruction&) { w.must_wait = false; }

}  // namespace

Run call_run() { return &call; }
Run return_run() { return &ret; }
Run exit_run() { return &exit_lanes; }
Run copy_param_run() { return &copy_param; }
Run indexed_branch_run() { return &brx; }

bool bind_control(Binder& b) {
  const auto op = b.op();
  if (op == "bra") b.in.run = &bra;
  if (op == "exit") b.in.run = &exit_lanes;
  if (op == "trap" || op == "brkpt") b.in.run = &trap;
  if (op == "nanosleep" || op == "pmevent") b.in.run = &nothing;
  if (op == "griddepcontrol") b.in.run = b.has("wait") ? &grid_wait : &nothing;
  if (op == "brx") {
    b.in.run = &brx;
    b.in.a = b.read(b.operand(0), false);
  }
  return b.in.run != nullptr;
}

}  // namespace ptx
