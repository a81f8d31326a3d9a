// cp.async, cp.async.bulk and st.async. Bytes land when they are waited for, so that a kernel that does not wait is
// found out; with an odd seed they land at once.
#include <algorithm>
#include <array>

#include "barriers.hpp"
#include "binder.hpp"
#include "profile.hpp"

namespace ptx {

void land(Warp& w, const Copy& copy) {
  uint8_t* to = shared_at(w, copy.to, copy.bytes, copy.lane, false, Access::kWrite);
  if (copy.valid != 0) std::memcpy(to, global_at(w, copy.from, copy.valid, copy.lane), copy.valid);
  std::memset(to + copy.valid, 0, size_t{copy.bytes} - copy.valid);
}

void land_copies(Warp& w, Mask lanes, uint32_t groups_left) {
  // What an mbarrier waits for lands with its arrival, and first.
  std::deque<AsyncEvent>& events = w.block->events;
  for (size_t i = 0; i < events.size();) {
    if (events[i].warp != &w) {
      ++i;
      continue;
    }
    const AsyncEvent event = std::move(events[i]);
    events.erase(events.begin() + static_cast<std::ptrdiff_t>(i));
    event.land();
  }
  std::erase_if(w.copies, [&](const Copy& copy) {
    if ((lanes >> copy.lane & 1) == 0) return false;
    // Groups 1 .. commits[lane]; 0: not committed, which only waiting for all covers.
    const bool wanted =
        copy.commit == 0 ? groups_left == kAllGroups : copy.commit + groups_left <= w.commits[copy.lane];
    if (wanted || groups_left == kAllGroups) land(w, copy);
    return wanted || groups_left == kAllGroups;
  });
}

namespace {

void count(Warp& w, const Instruction& in, uint64_t bytes) {
  uint64_t to[kLanes];
  uint64_t from[kLanes];
  each_lane(w.exec, [&](int i) {
    to[i] = lane_address(w, in, i) & kSharedOffsetMask;
    from[i] = read_lane(w, in.b, i) + static_cast<uint64_t>(in.extra->numbers[1]);
  });
  count_shared(w.counters[w.pc - 1], to, w.exec, bytes);
  count_global(w.counters[w.pc - 1], from, w.exec, bytes);
}

void copy_async(Warp& w, const Instruction& in) {
  const auto bytes = static_cast<uint8_t>(in.extra->numbers[0]);
  if (w.counters != nullptr) count(w, in, bytes);
  each_lane(w.exec, [&](int i) {
    Copy copy;
    copy.lane = static_cast<uint8_t>(i);
    copy.to = static_cast<uint32_t>(lane_address(w, in, i));
    copy.from = read_lane(w, in.b, i) + static_cast<uint64_t>(in.extra->numbers[1]);
    copy.bytes = bytes;
    copy.valid = bytes;
    if (!in.extra->c.empty()) {
      const uint32_t size = row<uint32_t>(w, in.extra->c[0])[i];
      if (size > bytes) w.fail("cp.async: the size of the source is larger than the copy", i);
      copy.valid = static_cast<uint8_t>(size);
    }
    if (in.extra->numbers[2] != 0) copy.valid = (read_mask(w, in.c) >> i & 1) != 0 ? 0 : bytes;  // ignore-src
    if (copy.to % bytes != 0) fail_alignment(w, "shared", copy.to, bytes, i);
    (void)shared_at(w, copy.to, bytes, i, false);
    if (copy.valid != 0) {
      if (copy.from % bytes != 0) fail_alignment(w, "global", copy.from, bytes, i);
      (void)global_at(w, copy.from, copy.valid, i);
    }
    if (w.block->cluster->late)
      w.copies.push_back(copy);
    else
      land(w, copy);
  });
}

void commit(Warp& w, const Instruction&) {
  each_lane(w.exec, [&](int i) { ++w.commits[i]; });
  for (Copy& copy : w.copies) {
    if (copy.commit == 0 && (w.exec >> copy.lane & 1) != 0) copy.commit = w.commits[copy.lane];
  }
}
void wait_group(Warp& w, const Instruction& in) {
  land_copies(w, w.exec, static_cast<uint32_t>(row<uint32_t>(w, in.b)[std::countr_zero(w.exec)]));
}
void wait_all(Warp& w, const Instruction&) { land_copies(w, w.exec, kAllGroups); }

void post(Warp& w, std::function<void()> land_it) {
  if (w.block->cluster->late) {
    w.block->events.push_back({&w, std::move(land_it)});
  } else {
    land_it();
  }
}

// The copies so far of these lanes, then an arrival for each lane. value: noinc; else the arrival is one more than init
// said.
void arrive_after_copies(Warp& w, const Instruction& in) {
  struct Arrival {
    uint64_t address;
    int lane;
  };
  std::vector<Arrival> arrivals;
  const bool generic = in.extra->numbers[7] != 0;
  each_lane(w.exec, [&](int i) {
    uint64_t address = lane_address(w, in, i);
    if (generic) address = shared_of_generic(w, address, i);
    if (in.extra->numbers[0] == 0) MbarrierPlace(w, address, i, false).change(-1, 0);
    arrivals.push_back({address, i});
  });
  std::vector<Copy> copies;
  std::erase_if(w.copies, [&](const Copy& copy) {
    if ((w.exec >> copy.lane & 1) == 0) return false;
    copies.push_back(copy);
    return true;
  });
  post(w, [&w, copies = std::move(copies), arrivals = std::move(arrivals)] {
    for (const Copy& copy : copies) land(w, copy);
    for (const Arrival& a : arrivals) MbarrierPlace(w, a.address, a.lane, false).change(1, 0);
  });
}

// cp.async.bulk: numbers[0]: global to shared (0), shared to global (1), shared to another block (2).
enum Bulk : int64_t { kIn, kOut, kAcross };
void bulk(Warp& w, const Instruction& in) {
  const int64_t kind = in.extra->numbers[0];
  each_lane(w.exec, [&](int i) {
    const uint64_t to = lane_address(w, in, i);
    const uint64_t from = read_lane(w, in.b, i) + static_cast<uint64_t>(in.extra->numbers[1]);
    const uint64_t bytes = row<uint32_t>(w, in.extra->c[0])[i];
    if ((to | from | bytes) % 16 != 0) w.fail("cp.async.bulk: addresses and size are multiples of 16", i);
    const uint64_t barrier =
        kind == kOut ? 0 : read_lane(w, in.extra->c[1], i) + static_cast<uint64_t>(in.extra->numbers[2]);
    post(w, [&w, to, from, bytes, barrier, kind, i] {
      uint8_t* target = kind == kOut ? global_at(w, to, bytes, i) : shared_at(w, to, bytes, i, true, Access::kWrite);
      const uint8_t* source =
          kind == kIn ? global_at(w, from, bytes, i) : shared_at(w, from, bytes, i, false, Access::kTensorRead);
      std::memmove(target, source, bytes);
      if (kind != kOut) MbarrierPlace(w, barrier, i, true).change(0, -static_cast<int64_t>(bytes));
    });
  });
}

// st.async: registers to shared memory of any block of the cluster.
void store_async(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) {
    const uint64_t to = lane_address(w, in, i);
    const uint64_t barrier = read_lane(w, in.extra->c[0], i) + static_cast<uint64_t>(in.extra->numbers[1]);
    std::array<uint32_t, 4> words{};
    const size_t bytes = in.extra->b.size() * sizeof(uint32_t);
    for (size_t k = 0; k < in.extra->b.size(); ++k) words[k] = static_cast<uint32_t>(read_lane(w, in.extra->b[k], i));
    if (to % bytes != 0) fail_alignment(w, "shared", to, bytes, i);
    post(w, [&w, to, bytes, barrier, words, i] {
      std::memcpy(shared_at(w, to, bytes, i, true, Access::kWrite), words.data(), bytes);
      MbarrierPlace(w, barrier, i, true).change(0, -static_cast<int64_t>(bytes));
    });
  });
}

bool bind_store_async(Binder& b) {
  if (!b.has("mbarrier::complete_tx::bytes") || bytes_of(b.type) != 4 || b.operands() != 3) return false;
  const Operand& data = b.operand(1);
  for (const Operand& part : data.kind == Operand::Kind::kVector ? data.parts : std::vector<Operand>{data}) {
    b.extra().b.push_back(b.read(part, false));
  }
  b.address(b.operand(2));
  b.extra().c = {b.in.a};
  b.extra().numbers[1] = b.in.value;
  b.address(b.operand(0));
  b.in.run = &store_async;
  return true;
}

// cp.async.bulk.prefetch.L2 moves nothing that a program could see, also before griddepcontrol.wait; but what it names
// must exist.
void bulk_prefetch(Warp& w, const Instruction& in) {
  each_lane(w.exec, [&](int i) {
    const uint64_t from = lane_address(w, in, i);
    const uint64_t bytes = row<uint32_t>(w, in.b)[i];
    if ((from | bytes) % 16 != 0) w.fail("cp.async.bulk.prefetch: address and size are multiples of 16", i);
    if (bytes > 0 && !Memory::device().find(from).holds(from, from + bytes)) fail_access(w, "global", from, bytes, i);
  });
}

void address_pair(Binder& b, const Operand& to, const Operand& from) {
  b.address(from);
  const Slot source = b.in.a;
  const int64_t offset = b.in.value;
  b.address(to);
  b.in.b = source;
  b.extra().numbers[1] = offset;
}

bool bind_bulk(Binder& b) {
  if (b.has("commit_group")) {
    b.in.run = &commit;
    return true;
  }
  if (b.has("wait_group")) {
    b.in.run = &wait_all;
    return true;
  }
  if (b.has("prefetch")) {
    if (b.has("tensor") || b.operands() < 2) return false;
    b.in.b = b.read(b.operand(1), false);
    b.address(b.operand(0));
    b.in.run = &bulk_prefetch;
    return true;
  }
  if (b.has("tensor") || b.has("multicast::cluster") || b.operands() < 3) return false;
  const bool out = b.has("bulk_group");
  const bool in = b.has("global") && !out;
  address_pair(b, b.operand(0), b.operand(1));
  b.extra().numbers[0] = out ? kOut : in ? kIn : kAcross;
  b.extra().c = {b.read(b.operand(2), false)};
  if (!out) {
    const Slot to = b.in.a;
    const int64_t offset = b.in.value;
    b.address(b.operand(3));
    b.extra().c.push_back(b.in.a);
    b.extra().numbers[2] = b.in.value;
    b.in.a = to;
    b.in.value = offset;
  }
  b.in.run = &bulk;
  return true;
}

}  // namespace

bool bind_async(Binder& b) {
  if (b.op() == "st" && b.has("async")) return bind_store_async(b);
  if (b.op() != "cp" || !b.has("async")) return false;
  if (b.has("bulk")) return bind_bulk(b);
  if (b.has("commit_group")) {
    b.in.run = &commit;
  } else if (b.has("wait_group")) {
    b.in.b = b.read(b.operand(0), false);
    b.in.run = &wait_group;
  } else if (b.has("wait_all")) {
    b.in.run = &wait_all;
  } else if (b.has("mbarrier")) {
    b.address(b.operand(0));
    b.extra().numbers[0] = b.has("noinc") ? 1 : 0;
    b.extra().numbers[7] = b.has("shared") || b.has("shared::cta") ? 0 : 1;
    b.in.run = &arrive_after_copies;
  } else {
    address_pair(b, b.operand(0), b.operand(1));
    b.extra().numbers[0] = static_cast<int64_t>(b.operand(2).value);
    if (b.operands() > 3 && !b.has("L2::cache_hint")) {
      const Operand& last = b.operand(3);
      const bool predicate = last.kind == Operand::Kind::kRegister && b.is_predicate(last);
      b.extra().numbers[2] = predicate ? 1 : 0;
      if (predicate)
        b.in.c = b.predicate(last);
      else
        b.extra().c = {b.read(last, false)};
    }
    b.in.run = &copy_async;
  }
  return true;
}

}  // namespace ptx
