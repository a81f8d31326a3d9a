// What each line of a kernel costs, as far as counts say: instructions of warps, passes over shared memory, sectors of
// global memory. MEGAMLA_PTX_PROFILE=FILE writes it when the process ends.
#pragma once

#include "machine.hpp"

namespace ptx {

struct Counters {
  uint64_t instructions = 0;                      // of warps
  uint64_t shared_passes = 0, shared_least = 0;   // 128 bytes from 32 banks a pass; without conflicts
  uint64_t global_sectors = 0, global_least = 0;  // of 32 bytes; if all bytes were neighbours
};

// Of one program, by place. Runs on one thread (MEGAMLA_PTX_THREADS=1).
struct Profile {
  uint64_t launches = 0;
  std::vector<Counters> counters;
};

// nullptr: not asked for.
Profile* profile_of(const std::shared_ptr<const Program>& program);

// The lanes' accesses of one instruction, each of `bytes`.
void count_shared(Counters& counters, const uint64_t (&offsets)[kLanes], Mask lanes, uint64_t bytes);
void count_global(Counters& counters, const uint64_t (&addresses)[kLanes], Mask lanes, uint64_t bytes);

}  // namespace ptx
