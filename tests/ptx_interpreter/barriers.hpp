// Barriers in shared memory, and what happens when threads end.
#pragma once

#include "access.hpp"

namespace ptx {

void leave(Warp& w, Mask lanes);  // exit

// An mbarrier is 64 bits of shared memory: phase, arrivals still missing, arrivals of a phase, bytes still missing.
struct Mbarrier {
  static constexpr int64_t kMostArrivals = (1 << 20) - 1;
  uint32_t phase = 0;  // 0 or 1
  int64_t pending = 0, expected = 0, bytes = 0;

  static Mbarrier unpack(uint64_t bits);
  uint64_t pack() const;
};

// A place of an mbarrier: valid only after init.
class MbarrierPlace {
 public:
  // `address` is a shared address; `cluster`: of any block.
  MbarrierPlace(Warp& w, uint64_t address, int lane, bool cluster);
  void init(int64_t arrivals);
  void invalidate();
  Mbarrier read() const;
  void pass() const;  // the phase has ended: what came before the arrivals is seen
  // Then the phase ends if nothing is missing. Returns the state before.
  Mbarrier change(int64_t arrivals, int64_t bytes, bool drop = false);

 private:
  void expect_valid() const;
  Warp& w_;
  Block* block_;
  uint64_t offset_;
  int lane_;
};

// The shared address in a generic one.
uint64_t shared_of_generic(Warp& w, uint64_t address, int lane);

// cp.async of a warp: all but the last `groups_left` groups land, kAllGroups: also what no group has.
constexpr uint32_t kAllGroups = ~uint32_t{0};
void land_copies(Warp& w, Mask lanes, uint32_t groups_left);
void land(Warp& w, const Copy& copy);

}  // namespace ptx
