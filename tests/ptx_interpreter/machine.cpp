// Warps run, blocks of a cluster take turns, clusters come one after the other.
#include "machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "barriers.hpp"
#include "profile.hpp"

namespace ptx {
namespace {

constexpr uint32_t kNever = ~uint32_t{0};

bool may_merge(const Group& g) { return g.wait == Wait::kReady || g.wait == Wait::kYield || g.wait == Wait::kJoin; }

bool is_ready(const Warp& w, const Group& g) {
  const Cluster& cluster = *w.block->cluster;
  switch (g.wait) {
    case Wait::kReady:
      return true;
    case Wait::kYield:
      return false;
    case Wait::kJoin:  // the others have ended
      return (g.number & w.alive & ~g.lanes) == 0;
    case Wait::kWarpBarrier: {
      Mask there = 0;
      for (const Group& other : w.others) {
        if (other.wait == Wait::kWarpBarrier && other.number == g.number) there |= other.lanes;
      }
      return (g.number & w.alive & ~there) == 0;
    }
    case Wait::kBarrier:
      return w.block->barriers[g.number & 15].phase != g.address;
    case Wait::kClusterBarrier:
      return cluster.barrier_phase != g.address;
    case Wait::kMbarrier: {
      if (w.force_false) return true;
      const Block& block = *cluster.blocks[g.address >> kRankShift];
      const uint8_t* at = block.shared.data() + ((g.address & kSharedOffsetMask) - kSharedBegin);
      return Mbarrier::unpack(load_as<uint64_t>(at)).phase != g.number;
    }
  }
  return false;
}

}  // namespace

bool Warp::choose() {
  if (active != 0) return true;
  // All groups of a barrier within the warp go on together.
  for (Group& g : others) {
    if (g.wait == Wait::kWarpBarrier && is_ready(*this, g)) {
      const Mask number = g.number;
      for (Group& other : others) {
        if (other.wait == Wait::kWarpBarrier && other.number == number) other.wait = Wait::kReady;
      }
    }
  }
  const auto pick = [&](bool yielded) {
    size_t best = others.size();
    for (size_t i = 0; i < others.size(); ++i) {
      if (yielded ? others[i].wait != Wait::kYield : !is_ready(*this, others[i])) continue;
      if (best == others.size() || others[i].pc < others[best].pc) best = i;
    }
    return best;
  };
  size_t best = pick(false);
  if (best == others.size()) best = pick(true);
  if (best == others.size()) return false;
  const Group g = others[best];
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(best));
  resumed = g.wait == Wait::kBarrier && g.number > 15;
  pc = g.pc;
  active = g.lanes;
  if (races != nullptr && g.wait == Wait::kBarrier) races->pass(*this, races->named(*block, g.number & 15));
  if (races != nullptr && g.wait == Wait::kClusterBarrier) races->pass(*this, races->of_cluster());
  for (Group& other : others) {
    if (other.wait == Wait::kYield) other.wait = Wait::kReady;
  }
  if (resumed) {
    // What it was resumed for comes first.
    switch_pc = kNever;
    return true;
  }
  look();
  return true;
}

void Warp::look() {
  for (;;) {
    Mask met = 0;
    std::erase_if(others, [&](const Group& g) {
      if (g.pc != pc || !may_merge(g)) return false;
      met |= g.lanes;
      return true;
    });
    active |= met;
    switch_pc = kNever;
    size_t lowest = others.size();
    for (size_t i = 0; i < others.size(); ++i) {
      const Group& g = others[i];
      if (!may_merge(g)) continue;
      if (g.pc > pc) switch_pc = std::min(switch_pc, g.pc);
      if (g.pc < pc && g.wait == Wait::kReady && (lowest == others.size() || g.pc < others[lowest].pc)) lowest = i;
    }
    if (lowest == others.size()) return;
    std::swap(pc, others[lowest].pc);
    std::swap(active, others[lowest].lanes);
  }
}

void Warp::park(Wait wait, uint32_t at, uint32_t number, uint64_t address) {
  others.push_back({at, exec, wait, number, address});
  active &= ~exec;
  if (active == 0) {
    switch_pc = 0;
  } else {
    look();
  }
}

bool Warp::together(Mask members) {
  if ((members & alive & ~exec) == 0) return true;
  park(Wait::kJoin, pc - 1, members);
  return false;
}

void leave(Warp& w, Mask lanes) {
  land_copies(w, lanes, kAllGroups);
  w.alive &= ~lanes;
  w.active &= ~lanes;
  Cluster& cluster = *w.block->cluster;
  cluster.barrier_arrived -= static_cast<uint32_t>(std::popcount(w.cluster_arrived & lanes));
  w.cluster_arrived &= ~lanes;
  w.block->exit_threads(static_cast<uint32_t>(std::popcount(lanes)));
  if (w.active == 0) w.switch_pc = 0;
}

void Block::exit_threads(uint32_t count) {
  alive_threads -= count;
  cluster->alive_threads -= count;
  ++cluster->progress;
  for (uint32_t i = 0; i < 16; ++i) {
    if (barriers[i].arrived != 0) settle_barrier(i);
  }
  cluster->settle_barrier();
  if (alive_threads != 0) return;
  while (!events.empty()) {
    const AsyncEvent event = std::move(events.front());
    events.pop_front();
    event.land();
  }
}

void Block::settle_barrier(uint32_t index) {
  NamedBarrier& b = barriers[index];
  const uint32_t wanted = b.expected != 0 ? b.expected : alive_threads;
  if (b.arrived < wanted) return;
  b.results[b.phase & 1] = b.arrived << 16 | b.yes;
  b.arrived = b.yes = 0;
  if (cluster->races != nullptr) Races::complete(cluster->races->named(*this, index));
  ++b.phase;
  ++cluster->progress;
}

void Cluster::settle_barrier() {
  if (barrier_arrived == 0 || barrier_arrived < alive_threads) return;
  barrier_arrived = 0;
  if (races != nullptr) Races::complete(races->of_cluster());
  ++barrier_phase;
  ++progress;
}

Block& Cluster::peer(uint32_t rank, const Warp& asking) const {
  Block& block = *blocks[rank];
  if (block.alive_threads == 0) {
    asking.fail(fmt::format("access to the shared memory of block {} of the cluster, which has ended", rank));
  }
  return block;
}

Cluster::~Cluster() = default;

Cluster::Cluster(const Launch& l, uint64_t s, bool races_too)
    : launch(l), seed(s), find_races(races_too), random_schedule(s != 0), late(s % 2 == 0) {
  const Program& program = *launch.program;
  const uint32_t size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
  for (uint32_t rank = 0; rank < size; ++rank) {
    auto block = std::make_unique<Block>();
    block->cluster = this;
    block->rank = rank;
    block->threads = threads;
    block->shared.resize(program.dynamic_begin + launch.dynamic_shared);
    block->mbarriers.resize(block->shared.size() / 8 + 1);
    for (uint32_t i = 0; i * kLanes < threads; ++i) {
      auto warp = std::make_unique<Warp>();
      warp->index = static_cast<int>(i);
      warp->block = block.get();
      warp->program = &program;
      warp->registers = std::make_unique_for_overwrite<uint8_t[]>(program.register_bytes + 64);
      warp->local.resize(size_t{program.local_bytes} * kLanes + 16);
      warp->base[0] = warp->registers.get() + (-reinterpret_cast<uintptr_t>(warp->registers.get()) & 63);
      auto* constants = const_cast<uint8_t*>(program.constants.data());
      warp->base[1] = constants + (-reinterpret_cast<uintptr_t>(constants) & 63);
      block->warps.push_back(std::move(warp));
    }
    blocks.push_back(std::move(block));
  }
}

void Cluster::place(uint64_t index) {
  uint32_t at[3];
  for (int d = 0; d < 3; ++d) {
    const uint32_t along = launch.grid[d] / launch.cluster[d];
    at[d] = static_cast<uint32_t>(index % along);
    index /= along;
  }
  barrier_arrived = 0;
  alive_threads = 0;
  for (auto& block : blocks) {
    uint32_t rank = block->rank;
    for (int d = 0; d < 3; ++d) {
      block->id[d] = at[d] * launch.cluster[d] + rank % launch.cluster[d];
      rank /= launch.cluster[d];
    }
    alive_threads += block->threads;
    prepare(*block);
  }
  if (!find_races) return;
  races = std::make_unique<Races>(*this);
  for (auto& block : blocks) {
    for (auto& warp : block->warps) warp->races = races.get();
  }
}

void Cluster::prepare(Block& block) {
  block.alive_threads = block.threads;
  // Whatever was there before: NaN in most formats.
  std::fill(block.shared.begin(), block.shared.end(), uint8_t{0xff});
  block.mbarriers.assign(block.mbarriers.size(), false);
  for (NamedBarrier& b : block.barriers) b = {};
  for (auto& warp : block.warps) prepare(*warp);
}

namespace {

uint32_t special_value(const Special& s, const Warp& w, int lane, const Launch& l) {
  const Block& b = *w.block;
  const uint32_t thread = static_cast<uint32_t>(w.index * kLanes + lane);
  const uint32_t bit = uint32_t{1} << lane;
  const auto axis = [&](SpecialKind first) { return static_cast<size_t>(s.kind) - static_cast<size_t>(first); };
  switch (s.kind) {
    case SpecialKind::kLane:
      return static_cast<uint32_t>(lane);
    case SpecialKind::kTidX:
      return thread % l.block[0];
    case SpecialKind::kTidY:
      return thread / l.block[0] % l.block[1];
    case SpecialKind::kTidZ:
      return thread / l.block[0] / l.block[1];
    case SpecialKind::kNtidX:
    case SpecialKind::kNtidY:
    case SpecialKind::kNtidZ:
      return l.block[axis(SpecialKind::kNtidX)];
    case SpecialKind::kCtaX:
    case SpecialKind::kCtaY:
    case SpecialKind::kCtaZ:
      return b.id[axis(SpecialKind::kCtaX)];
    case SpecialKind::kNctaX:
    case SpecialKind::kNctaY:
    case SpecialKind::kNctaZ:
      return l.grid[axis(SpecialKind::kNctaX)];
    case SpecialKind::kWarp:
      return static_cast<uint32_t>(w.index);
    case SpecialKind::kNwarp:
      return static_cast<uint32_t>(b.warps.size());
    case SpecialKind::kClusterX:
    case SpecialKind::kClusterY:
    case SpecialKind::kClusterZ:
      return b.id[axis(SpecialKind::kClusterX)] / l.cluster[axis(SpecialKind::kClusterX)];
    case SpecialKind::kNclusterX:
    case SpecialKind::kNclusterY:
    case SpecialKind::kNclusterZ:
      return l.grid[axis(SpecialKind::kNclusterX)] / l.cluster[axis(SpecialKind::kNclusterX)];
    case SpecialKind::kClusterCtaX:
    case SpecialKind::kClusterCtaY:
    case SpecialKind::kClusterCtaZ:
      return b.id[axis(SpecialKind::kClusterCtaX)] % l.cluster[axis(SpecialKind::kClusterCtaX)];
    case SpecialKind::kClusterNctaX:
    case SpecialKind::kClusterNctaY:
    case SpecialKind::kClusterNctaZ:
      return l.cluster[axis(SpecialKind::kClusterNctaX)];
    case SpecialKind::kClusterRank:
      return b.rank;
    case SpecialKind::kClusterSize:
      return l.cluster[0] * l.cluster[1] * l.cluster[2];
    case SpecialKind::kIsExplicitCluster:
      return l.cluster[0] * l.cluster[1] * l.cluster[2] > 1 ? 1 : 0;
    case SpecialKind::kLaneEq:
      return bit;
    case SpecialKind::kLaneLe:
      return bit | (bit - 1);
    case SpecialKind::kLaneLt:
      return bit - 1;
    case SpecialKind::kLaneGe:
      return ~(bit - 1);
    case SpecialKind::kLaneGt:
      return ~(bit | (bit - 1));
    case SpecialKind::kSm:
      return b.id[0] % 132;
    case SpecialKind::kNsm:
      return 132;
    case SpecialKind::kWarpSize:
      return kLanes;
    case SpecialKind::kDynamicSharedBytes:
      return l.dynamic_shared;
    case SpecialKind::kTotalSharedBytes:
      return static_cast<uint32_t>(b.shared.size());
    case SpecialKind::kGridId:
    case SpecialKind::kZero:
      return 0;
    case SpecialKind::kSharedAddress:
      return b.rank << kRankShift | (kSharedBegin + s.value);
    case SpecialKind::kDynamicShared:
      return b.rank << kRankShift | (kSharedBegin + w.program->dynamic_begin + s.value);
  }
  return 0;
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

void Cluster::prepare(Warp& w) {
  const uint32_t left = w.block->threads - static_cast<uint32_t>(w.index) * kLanes;
  w.alive = w.active = left >= kLanes ? kAllLanes : (Mask{1} << left) - 1;
  w.pc = 0;
  w.switch_pc = kNever;
  w.carry = w.cluster_arrived = 0;
  w.force_false = w.resumed = false;
  w.others.clear();
  w.copies.clear();
  w.products.clear();
  std::fill(std::begin(w.commits), std::end(w.commits), 0U);
  w.product_commits = 0;
  w.cached = {};
  w.must_wait = launch.overlaps;
  for (const Special& s : w.program->specials) {
    for (int i = 0; i < kLanes; ++i) write_lane(w, s.slot, i, special_value(s, w, i, launch));
  }
}

template <bool kCount>
uint64_t Cluster::run_warp(Warp& w, uint64_t limit) {
  const Instruction* code = w.program->code.data();
  uint64_t n = 0;
  while (n < limit) {
    const Instruction& in = code[w.pc];
    if constexpr (kCount) ++w.counters[w.pc].instructions;
    ++w.pc;
    ++n;
    Mask lanes = w.active;
    if (in.guarded) {
      const Mask guard = *reinterpret_cast<const Mask*>(w.base[0] + in.guard);
      lanes &= in.guard_negated ? ~guard : guard;
    }
    if (lanes != 0) {
      w.exec = lanes;
      in.run(w, in);
    }
    if (w.pc < w.switch_pc) continue;
    if (w.active != 0) {
      w.look();
    } else if (!w.choose()) {
      return n;
    }
  }
  return n;
}

bool Cluster::land_events() {
  for (auto& block : blocks) {
    if (block->events.empty()) continue;
    // In order, or any of them.
    const size_t which = random_schedule ? random() % block->events.size() : 0;
    const AsyncEvent event = std::move(block->events[which]);
    block->events.erase(block->events.begin() + static_cast<std::ptrdiff_t>(which));
    event.land();
    return true;
  }
  return false;
}

void Cluster::run(uint64_t index) {
  constexpr uint64_t kTurn = 4096;       // instructions
  constexpr int kTurnsBeforeYield = 16;  // of a group that others of its warp wait behind
  constexpr int kMostForced = 1000;
  static const uint64_t most = from_environment("MEGAMLA_PTX_LIMIT", uint64_t{1} << 36);
  if (random_schedule) random.seed(seed * 0x9e3779b97f4a7c15 + index);
  place(index);
  std::vector<Warp*> warps;
  for (auto& block : blocks) {
    for (auto& warp : block->warps) warps.push_back(warp.get());
  }
  std::vector<int> turns(warps.size());
  const uint64_t begin = instructions;
  int forced = 0;
  uint64_t seen = progress;
  while (alive_threads != 0) {
    bool ran = false;
    bool ran_free = false;
    if (random_schedule) std::shuffle(warps.begin(), warps.end(), random);
    for (size_t i = 0; i < warps.size(); ++i) {
      Warp& w = *warps[i];
      const bool was_forced = w.force_false;
      if (w.finished() || !w.choose()) continue;
      ran = true;
      ran_free = ran_free || !was_forced;
      const uint64_t limit = random_schedule ? 1 + random() % kTurn : kTurn;
      const uint64_t n = w.counters != nullptr ? run_warp<true>(w, limit) : run_warp<false>(w, limit);
      instructions += n;
      turns[i] = n < limit ? 0 : turns[i] + 1;
      if (turns[i] > kTurnsBeforeYield && w.active != 0 && !w.others.empty()) {
        w.exec = w.active;
        w.park(Wait::kYield, w.pc);
        turns[i] = 0;
      }
      if (random_schedule && random() % 8 == 0) (void)land_events();
    }
    if (instructions - begin > most) throw Fault(Fault::Kind::kTimeout, "kernel runs on without end");
    if (ran && (ran_free || progress != seen)) forced = 0;
    seen = progress;
    if (ran || land_events()) continue;
    // Everybody waits. A wait may say no: whoever asks may have other things to do.
    bool any = false;
    for (Warp* w : warps) {
      const bool asks =
          std::any_of(w->others.begin(), w->others.end(), [](const Group& g) { return g.wait == Wait::kMbarrier; });
      w->force_false = asks;
      any = any || asks;
    }
    if (!any || ++forced > kMostForced) report_deadlock();
  }
}

void run_grid(const Launch& launch) {
  static const uint64_t seed = from_environment("MEGAMLA_PTX_SEED", 0);
  static const uint64_t threads = from_environment("MEGAMLA_PTX_THREADS", 1);
  static const bool races = from_environment("MEGAMLA_PTX_RACES", 0) != 0;
  Profile* profile = profile_of(launch.program);
  if (profile != nullptr) ++profile->launches;
  uint64_t clusters = 1;
  for (int d = 0; d < 3; ++d) clusters *= launch.grid[d] / launch.cluster[d];
  std::atomic<uint64_t> next = 0;
  std::exception_ptr fault;
  std::mutex mutex;
  const auto work = [&] {
    Cluster cluster(launch, seed, races);
    for (auto& block : cluster.blocks) {
      for (auto& warp : block->warps) warp->counters = profile == nullptr ? nullptr : profile->counters.data();
    }
    for (uint64_t index = next++; index < clusters; index = next++) {
      try {
        cluster.run(index);
      } catch (...) {
        next = clusters;
        const std::lock_guard lock(mutex);
        if (fault == nullptr) fault = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (uint64_t i = 1; i < std::min(threads, clusters); ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (fault != nullptr) std::rethrow_exception(fault);
}

}  // namespace ptx
