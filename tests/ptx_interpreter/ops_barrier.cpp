// Barriers of blocks and clusters, mbarriers, addresses within a cluster.
#include "barriers.hpp"
#include "binder.hpp"

namespace ptx {

Mbarrier Mbarrier::unpack(uint64_t bits) {
  Mbarrier m;
  m.phase = static_cast<uint32_t>(bits >> 63);
  m.pending = static_cast<int64_t>(bits >> 43 & 0xfffff);
  m.expected = static_cast<int64_t>(bits >> 23 & 0xfffff);
  m.bytes = static_cast<int64_t>(bits << 41) >> 41;
  return m;
}
uint64_t Mbarrier::pack() const {
  return static_cast<uint64_t>(phase) << 63 | static_cast<uint64_t>(pending) << 43 |
         static_cast<uint64_t>(expected) << 23 | (static_cast<uint64_t>(bytes) & 0x7fffff);
}

MbarrierPlace::MbarrierPlace(Warp& w, uint64_t address, int lane, bool cluster) : w_(w), lane_(lane) {
  if (address % 8 != 0) fail_alignment(w, "shared", address, 8, lane);
  const uint8_t* at = shared_at(w, address, 8, lane, cluster);
  const auto rank = static_cast<uint32_t>(address >> kRankShift);
  block_ = rank == w.block->rank ? w.block : &w.block->cluster->peer(rank, w);
  offset_ = static_cast<uint64_t>(at - block_->shared.data());
}
void MbarrierPlace::init(int64_t arrivals) {
  if (arrivals < 1 || arrivals > Mbarrier::kMostArrivals) w_.fail("mbarrier.init: bad number of arrivals", lane_);
  Mbarrier m;
  m.pending = m.expected = arrivals;
  const uint64_t bits = m.pack();
  std::memcpy(block_->shared.data() + offset_, &bits, 8);
  block_->mbarriers[offset_ / 8] = true;
}
void MbarrierPlace::invalidate() {
  expect_valid();
  block_->mbarriers[offset_ / 8] = false;
}
void MbarrierPlace::expect_valid() const {
  if (!block_->mbarriers[offset_ / 8]) {
    w_.fail("there is no mbarrier at offset " + std::to_string(offset_) + " of shared memory: it was not initialised",
            lane_);
  }
}
void MbarrierPlace::pass() const {
  if (w_.races != nullptr) w_.races->pass(w_, w_.races->at(*block_, offset_));
}
Mbarrier MbarrierPlace::read() const {
  expect_valid();
  return Mbarrier::unpack(load_as<uint64_t>(block_->shared.data() + offset_));
}
Mbarrier MbarrierPlace::change(int64_t arrivals, int64_t bytes, bool drop) {
  const Mbarrier before = read();
  Mbarrier m = before;
  if ((arrivals > 0 || bytes < 0) && w_.races != nullptr) w_.races->arrive(w_, w_.races->at(*block_, offset_));
  m.pending -= arrivals;
  m.bytes += bytes;
  if (drop) m.expected -= arrivals;
  if (m.pending < 0) w_.fail("more arrivals at an mbarrier than it expects in this phase", lane_);
  if (m.pending == 0 && m.bytes == 0) {
    m.phase ^= 1;
    m.pending = m.expected;
    if (w_.races != nullptr) Races::complete(w_.races->at(*block_, offset_));
  }
  const uint64_t bits = m.pack();
  std::memcpy(block_->shared.data() + offset_, &bits, 8);
  ++block_->cluster->progress;
  return before;
}

uint64_t shared_of_generic(Warp& w, uint64_t address, int lane) {
  if (address >> kWindowShift != static_cast<uint64_t>(Window::kShared)) {
    fail_access(w, "shared (generic)", address, 8, lane);
  }
  return address & 0xffffffff;
}

namespace {

enum Space2 : int64_t { kCta, kAnyBlock, kGenericAddress };
int64_t mbarrier_space(const Binder& b) {
  if (b.has("shared::cluster")) return kAnyBlock;
  if (b.has("shared") || b.has("shared::cta")) return kCta;
  return kGenericAddress;
}
// extra numbers[7]: the space.
MbarrierPlace place(Warp& w, const Instruction& in, int lane) {
  const uint64_t address = lane_address(w, in, lane);
  const int64_t space = in.extra->numbers[7];
  if (space == kGenericAddress) return {w, shared_of_generic(w, address, lane), lane, true};
  return {w, address, lane, space == kAnyBlock};
}
int64_t count_of(Warp& w, const Instruction& in, int lane, int64_t otherwise) {
  return in.extra->c.empty() ? otherwise : static_cast<int64_t>(row<uint32_t>(w, in.extra->c[0])[lane]);
}

void mbarrier_init(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) { place(w, in, i).init(count_of(w, in, i, 1)); });
}
void mbarrier_inval(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) { place(w, in, i).invalidate(); });
}
enum Arrive : int64_t { kPlain, kExpectTx, kDrop };
void mbarrier_arrive(Warp& w, const Instruction& in) {
  const int64_t kind = in.extra->numbers[0];
  each_lane(w.exec, [&](int i) {
    MbarrierPlace at = place(w, in, i);
    Mbarrier before;
    if (kind == kExpectTx) {
      before = at.change(1, count_of(w, in, i, 0));
    } else {
      before = at.change(count_of(w, in, i, 1), 0, kind == kDrop);
    }
    write_lane(w, in.d, i, before.pack());
  });
}
void mbarrier_tx(Warp& w, const Instruction& in) {  // numbers[0]: 1 expect, -1 complete
  each_lane(w.exec, [&](int i) { place(w, in, i).change(0, in.extra->numbers[0] * count_of(w, in, i, 0)); });
}

// numbers[0]: the operand is a parity, not a state; numbers[1]: may wait.
void mbarrier_wait(Warp& w, const Instruction& in) {
  Mask done = 0;
  uint32_t parity = 0;
  uint64_t address = 0;
  each_lane(w.exec, [&](int i) {
    const bool by_parity = in.extra->numbers[0] != 0;
    const uint64_t operand = read_lane(w, in.extra->c[0], i);
    parity = by_parity ? static_cast<uint32_t>(operand & 1) : Mbarrier::unpack(operand).phase;
    address = lane_address(w, in, i);
    const MbarrierPlace at = place(w, in, i);
    if (at.read().phase == parity) return;
    at.pass();
    done |= Mask{1} << i;
  });
  const bool forced = w.force_false;
  w.force_false = false;
  if (done == 0 && !forced) {
    w.park(Wait::kMbarrier, w.pc - 1, parity, address & 0xffffffff);
    return;
  }
  write_mask(w, in.d, done);
}

bool bind_mbarrier(Binder& b) {
  const std::string_view what = b.parts.at(1);
  const bool has_result = what == "test_wait" || what == "try_wait" || b.op() == "mbarrier";
  Extra& extra = b.extra();
  extra.numbers[7] = mbarrier_space(b);
  b.in.d.sink = true;
  if (what == "init" || what == "inval" || what == "expect_tx" || what == "complete_tx") {
    b.address(b.operand(0));
    if (b.operands() > 1) extra.c = {b.read(b.operand(1), false)};
    extra.numbers[0] = what == "complete_tx" ? -1 : 1;
    b.in.run = what == "init" ? &mbarrier_init : what == "inval" ? &mbarrier_inval : &mbarrier_tx;
    return true;
  }
  if (what == "arrive" || what == "arrive_drop") {
    const size_t at = b.operand(0).kind == Operand::Kind::kAddress ? 0 : 1;
    if (at == 1) b.in.d = b.write(b.operand(0));
    b.address(b.operand(at));
    if (b.operands() > at + 1) extra.c = {b.read(b.operand(at + 1), false)};
    extra.numbers[0] = b.has("expect_tx") ? kExpectTx : what == "arrive_drop" ? kDrop : kPlain;
    b.in.run = &mbarrier_arrive;
    return true;
  }
  if (has_result && (what == "test_wait" || what == "try_wait")) {
    b.in.d = b.predicate(b.operand(0));
    b.address(b.operand(1));
    extra.numbers[0] = b.has("parity") ? 1 : 0;
    extra.c = {b.read(b.operand(2), !b.has("parity"))};
    b.in.run = &mbarrier_wait;
    return true;
  }
  return false;
}

// bar, barrier: the index in a, a count of threads in b.
constexpr uint32_t kAgain = 256;  // the instruction runs once more after the wait, to read the result
enum Kind : int64_t { kSync, kArrive, kPopc, kAnd, kOr };

void bar(Warp& w, const Instruction& in) {
  const int64_t* n = in.extra->numbers;  // kind, aligned
  const int lane = std::countr_zero(w.exec);
  const auto index = static_cast<uint32_t>(read_lane(w, in.a, lane));
  if (index > 15) w.fail("there are 16 barriers, got the index " + std::to_string(index), lane);
  NamedBarrier& barrier = w.block->barriers[index];
  if (w.resumed) {
    w.resumed = false;
    const uint32_t count = barrier.results[(barrier.phase - 1) & 1];
    if (n[0] == kPopc) fill_row(w.exec, row<uint32_t>(w, in.d), [&](int) { return count & 0xffff; });
    if (n[0] == kAnd) write_mask(w, in.d, count >> 16 == (count & 0xffff) ? kAllLanes : 0);
    if (n[0] == kOr) write_mask(w, in.d, (count & 0xffff) != 0 ? kAllLanes : 0);
    if (!w.others.empty()) w.look();
    return;
  }
  if (n[1] != 0 && !w.together(kAllLanes)) return;
  const uint32_t count = in.b.sink ? 0 : static_cast<uint32_t>(read_lane(w, in.b, lane));
  if (count % kLanes != 0) w.fail("bar: expected a multiple of 32 threads, got " + std::to_string(count), lane);
  if (barrier.arrived != 0 && barrier.expected != count) {
    w.fail("bar: other threads wait at this barrier for another number of threads", lane);
  }
  barrier.expected = count;
  barrier.arrived += static_cast<uint32_t>(std::popcount(w.exec));
  if (w.races != nullptr) w.races->arrive(w, w.races->named(*w.block, index));
  if (n[0] >= kPopc) {
    const Mask yes = read_mask(w, in.c) & w.exec;
    barrier.yes += static_cast<uint32_t>(std::popcount(yes));
    w.park(Wait::kBarrier, w.pc - 1, index | kAgain, barrier.phase);
  } else if (n[0] == kSync) {
    w.park(Wait::kBarrier, w.pc, index, barrier.phase);
  }
  if (count != 0 && barrier.arrived > count) w.fail("bar: more threads arrive than the barrier is for", lane);
  w.block->settle_barrier(index);
}

bool bind_bar(Binder& b) {
  if (b.has("warp")) return false;
  const bool red = b.has("red");
  const bool barrier = b.op() == "barrier";
  Extra& extra = b.extra();
  extra.numbers[0] = b.has("popc")     ? kPopc
                     : b.has("and")    ? kAnd
                     : b.has("or")     ? kOr
                     : b.has("arrive") ? kArrive
                                       : kSync;
  extra.numbers[1] = !barrier || b.has("aligned") ? 1 : 0;
  b.in.b.sink = true;
  if (red) {
    b.in.d = b.has("popc") ? b.write(b.operand(0)) : b.predicate(b.operand(0));
    b.in.a = b.read(b.operand(1), false);
    if (b.operands() == 4) b.in.b = b.read(b.operand(2), false);
    b.in.c = b.predicate(b.operand(b.operands() - 1));
  } else {
    b.in.a = b.read(b.operand(0), false);
    if (b.operands() > 1) b.in.b = b.read(b.operand(1), false);
  }
  b.in.run = &bar;
  return true;
}

void cluster_arrive(Warp& w, const Instruction& in) {
  if (in.value != 0 && !w.together(kAllLanes)) return;
  if ((w.cluster_arrived & w.exec) != 0) {
    w.fail("barrier.cluster.arrive: a second time without barrier.cluster.wait", std::countr_zero(w.exec));
  }
  Cluster& cluster = *w.block->cluster;
  w.cluster_arrived |= w.exec;
  w.cluster_phase = cluster.barrier_phase;
  if (w.races != nullptr) w.races->arrive(w, w.races->of_cluster());
  cluster.barrier_arrived += static_cast<uint32_t>(std::popcount(w.exec));
  cluster.settle_barrier();
}
void cluster_wait(Warp& w, const Instruction& in) {
  if (in.value != 0 && !w.together(kAllLanes)) return;
  if ((w.cluster_arrived & w.exec) != w.exec) {
    w.fail("barrier.cluster.wait: without barrier.cluster.arrive", std::countr_zero(w.exec));
  }
  w.cluster_arrived &= ~w.exec;
  if (w.block->cluster->barrier_phase == w.cluster_phase) {
    w.park(Wait::kClusterBarrier, w.pc, 0, w.cluster_phase);
  } else if (w.races != nullptr) {
    w.races->pass(w, w.races->of_cluster());
  }
}

// The address of the same place in another block. value: the addresses are generic.
void mapa(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) {
    uint64_t address = read_lane(w, in.a, i);
    const uint64_t rank = row<uint32_t>(w, in.b)[i];
    if (in.value != 0) address = shared_of_generic(w, address, i);
    if (rank >= w.block->cluster->blocks.size()) w.fail("mapa: the cluster has no block " + std::to_string(rank), i);
    address = (address & kSharedOffsetMask) | rank << kRankShift;
    write_lane(w, in.d, i, in.value != 0 ? address | window_base(Window::kShared) : address);
  });
}
void getctarank(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) {
    const uint64_t address = read_lane(w, in.a, i);
    write_lane(w, in.d, i, (in.value != 0 ? shared_of_generic(w, address, i) : address) >> kRankShift);
  });
}

void whole_warp(Warp& w, const Instruction&) { (void)w.together(kAllLanes); }

}  // namespace

bool bind_barrier(Binder& b) {
  const auto op = b.op();
  if (op == "mbarrier") return bind_mbarrier(b);
  if (op == "barrier" && b.has("cluster")) {
    b.in.value = b.has("aligned") ? 1 : 0;
    b.in.run = b.has("arrive") ? &cluster_arrive : &cluster_wait;
    return true;
  }
  if (op == "bar" || op == "barrier") return bind_bar(b);
  if (op == "mapa" || op == "getctarank") {
    b.in.value = b.has("shared::cluster") ? 0 : 1;
    b.in.d = b.write(b.operand(0));
    b.in.a = b.read(b.operand(1), bytes_of(b.type) == 8);
    if (op == "mapa") b.in.b = b.read(b.operand(2), false);
    b.in.run = op == "mapa" ? &mapa : &getctarank;
    return true;
  }
  if (op == "setmaxnreg") {  // registers are not counted here
    b.in.run = &whole_warp;
    return true;
  }
  return false;
}

}  // namespace ptx
