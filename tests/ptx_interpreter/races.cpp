#include "races.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "access.hpp"

namespace ptx {
namespace {

void join(Races::Clock& into, const Races::Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

Races::Races(const Cluster& cluster) : warps_(cluster.blocks[0]->warps.size()) {
  const size_t blocks = cluster.blocks.size();
  const size_t warps = blocks * warps_;
  clocks_.assign(warps, Clock(warps));
  for (size_t i = 0; i < warps; ++i) clocks_[i][i] = 1;
  fences_.assign(warps, 0);
  chunks_.resize(blocks);
  for (auto& of_block : chunks_) of_block.resize(cluster.blocks[0]->shared.size() / 16 + 1);
  named_.resize(blocks * 16);
}

void Races::arrive(const Warp& w, Barrier& barrier) {
  Clock& mine = clocks_[number(w)];
  join(barrier.arriving, mine);
  ++mine[number(w)];
}
void Races::complete(Barrier& barrier) { join(barrier.done, barrier.arriving); }
void Races::pass(const Warp& w, const Barrier& barrier) { join(clocks_[number(w)], barrier.done); }

template <class F>
void Races::each_chunk(const Block& of, uint64_t offset, uint64_t bytes, F f) {
  for (uint64_t at = offset; at < offset + bytes;) {
    const uint64_t end = std::min(offset + bytes, at / 16 * 16 + 16);
    const auto mask = static_cast<uint16_t>(((1U << (end - at)) - 1) << (at % 16));
    f(chunks_[of.rank][at / 16], mask);
    at = end;
  }
}

Races::Access Races::access(const Warp& w, uint16_t bytes) {
  const size_t me = number(w);
  return {static_cast<uint32_t>(me), clocks_[me][me], w.pc - 1, bytes, ++time_};
}

void Races::fail(const Warp& w, const Access& other, const char* now, const char* before, uint64_t offset,
                 int lane) const {
  w.fail(
      fmt::format("{} of offset {} of shared memory that nothing orders after the {} by warp {} of block {}:{}\n  here",
                  now, offset, before, other.warp % warps_, other.warp / warps_, w.program->where(other.pc)),
      lane);
}

void Races::read(Warp& w, const Block& of, uint64_t offset, uint64_t bytes, int lane, bool by_tensor_cores) {
  each_chunk(of, offset, bytes, [&](Chunk& chunk, uint16_t mask) {
    for (const Access& write : chunk.writes) {
      if ((write.bytes & mask) == 0) continue;
      if (!is_ordered(w, write) && write.warp != number(w)) fail(w, write, "a read", "write", offset, lane);
      if (by_tensor_cores && std::max(fences_[write.warp], fences_[number(w)]) < write.time) {
        fail(w, write, "a read by tensor cores, without fence.proxy.async,", "write", offset, lane);
      }
    }
    // An older read of the same bytes says no more than this one.
    std::erase_if(chunk.reads, [&](const Access& r) { return r.warp == number(w) && (r.bytes & ~mask) == 0; });
    chunk.reads.push_back(access(w, mask));
  });
}

void Races::write(Warp& w, const Block& of, uint64_t offset, uint64_t bytes, int lane) {
  each_chunk(of, offset, bytes, [&](Chunk& chunk, uint16_t mask) {
    const auto check = [&](std::vector<Access>& all, const char* before) {
      for (Access& a : all) {
        if ((a.bytes & mask) == 0) continue;
        if (a.warp != number(w) && !is_ordered(w, a)) fail(w, a, "a write", before, offset, lane);
        a.bytes = static_cast<uint16_t>(a.bytes & ~mask);
      }
      std::erase_if(all, [](const Access& a) { return a.bytes == 0; });
    };
    check(chunk.writes, "write");
    check(chunk.reads, "read");
    chunk.writes.push_back(access(w, mask));
  });
}

void note_access(Warp& w, const Block& of, uint64_t offset, uint64_t bytes, int lane, Access access) {
  Races& races = *w.races;
  if (access == Access::kWrite) return races.write(w, of, offset, bytes, lane);
  if (access != Access::kSync) return races.read(w, of, offset, bytes, lane, access == Access::kTensorRead);
  // Atomics order those who come to the same place.
  Races::Barrier& place = races.at(of, offset);
  races.pass(w, place);
  races.arrive(w, place);
  Races::complete(place);
}

}  // namespace ptx
