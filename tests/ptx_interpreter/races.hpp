// Accesses to shared memory that nothing orders, whatever order the warps happened to run in: each warp has a vector
// clock, barriers pass clocks on. MEGAMLA_PTX_RACES=1.
#pragma once

#include <array>
#include <map>

#include "machine.hpp"

namespace ptx {

class Races {
 public:
  // For each warp of the cluster, what is known of each: the number of its releases.
  using Clock = std::vector<uint32_t>;
  struct Barrier {
    Clock arriving, done;  // of those who arrived in this phase, and until the last one ended
  };

  explicit Races(const Cluster& cluster);

  void read(Warp& w, const Block& of, uint64_t offset, uint64_t bytes, int lane, bool by_tensor_cores);
  void write(Warp& w, const Block& of, uint64_t offset, uint64_t bytes, int lane);
  void proxy_fence(const Warp& w) { fences_[number(w)] = ++time_; }

  void arrive(const Warp& w, Barrier& barrier);
  static void complete(Barrier& barrier);
  void pass(const Warp& w, const Barrier& barrier);
  Barrier& named(const Block& b, uint32_t index) { return named_[b.rank * 16 + index]; }
  Barrier& at(const Block& b, uint64_t offset) { return placed_[{b.rank, offset}]; }  // an mbarrier, an atomic
  Barrier& of_cluster() { return cluster_; }

 private:
  struct Access {
    uint32_t warp, clock, pc;
    uint16_t bytes;  // of the 16, a bit each
    uint64_t time;
  };
  struct Chunk {
    std::vector<Access> reads, writes;
  };

  size_t number(const Warp& w) const { return w.block->rank * warps_ + static_cast<size_t>(w.index); }
  template <class F>
  void each_chunk(const Block& of, uint64_t offset, uint64_t bytes, F f);
  bool is_ordered(const Warp& w, const Access& before) const { return before.clock <= clocks_[number(w)][before.warp]; }
  Access access(const Warp& w, uint16_t bytes);
  [[noreturn]] void fail(const Warp& w, const Access& other, const char* now, const char* before, uint64_t offset,
                         int lane) const;

  size_t warps_;  // of a block
  std::vector<Clock> clocks_;
  std::vector<uint64_t> fences_;            // when each warp last fenced the proxies
  std::vector<std::vector<Chunk>> chunks_;  // of each block
  std::vector<Barrier> named_;
  std::map<std::pair<uint32_t, uint64_t>, Barrier> placed_;
  Barrier cluster_;
  uint64_t time_ = 0;
};

}  // namespace ptx
