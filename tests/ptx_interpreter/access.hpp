// A lane's address as memory of the host, after it was checked.
#pragma once

#include <cstring>

#include "lanes.hpp"
#include "races.hpp"

namespace ptx {

[[noreturn]] void fail_access(const Warp& w, const char* space, uint64_t address, uint64_t bytes, int lane);
[[noreturn]] void fail_alignment(const Warp& w, const char* space, uint64_t address, uint64_t bytes, int lane);

inline uint8_t* global_at(Warp& w, uint64_t address, uint64_t bytes, int lane) {
  if (!w.cached.holds(address, address + bytes)) {
    if (w.must_wait) w.fail("global memory is accessed before griddepcontrol.wait", lane);
    const Range found = Memory::device().find(address);
    if (!found.holds(address, address + bytes)) fail_access(w, "global", address, bytes, lane);
    w.cached = found;
  }
  return reinterpret_cast<uint8_t*>(address);
}

enum class Access { kNone, kRead, kWrite, kTensorRead, kSync };

void note_access(Warp& w, const Block& of, uint64_t offset, uint64_t bytes, int lane, Access access);

// Of this block, or with `cluster` of any in the cluster.
inline uint8_t* shared_at(Warp& w, uint64_t address, uint64_t bytes, int lane, bool cluster,
                          Access access = Access::kNone) {
  const uint64_t rank = address >> kRankShift;
  Block* block = w.block;
  if (rank != block->rank) {
    if (!cluster || rank >= block->cluster->blocks.size()) fail_access(w, "shared", address, bytes, lane);
    block = &block->cluster->peer(static_cast<uint32_t>(rank), w);
  }
  const uint64_t offset = (address & kSharedOffsetMask) - kSharedBegin;  // wraps below
  if (offset >= block->shared.size() || offset + bytes > block->shared.size()) {
    fail_access(w, "shared", address, bytes, lane);
  }
  if (access != Access::kNone && w.races != nullptr) note_access(w, *block, offset, bytes, lane, access);
  return block->shared.data() + offset;
}

inline uint8_t* local_at(Warp& w, uint64_t address, uint64_t bytes, int lane) {
  const uint64_t size = w.program->local_bytes;
  if (address >= size || address + bytes > size) fail_access(w, "local", address, bytes, lane);
  return w.local.data() + static_cast<uint64_t>(lane) * size + address;
}

inline uint8_t* param_at(Warp& w, uint64_t address, uint64_t bytes, int lane) {
  auto& params = const_cast<std::vector<uint8_t>&>(w.block->cluster->launch.params);
  if (address >= params.size() || address + bytes > params.size()) fail_access(w, "param", address, bytes, lane);
  return params.data() + address;
}

inline uint8_t* generic_at(Warp& w, uint64_t address, uint64_t bytes, int lane, Access access) {
  const uint64_t within = address & ((uint64_t{1} << kWindowShift) - 1);
  switch (static_cast<Window>(address >> kWindowShift)) {
    case Window::kGlobal:
      return global_at(w, address, bytes, lane);
    case Window::kShared:
      return shared_at(w, within, bytes, lane, true, access);
    case Window::kLocal:
      return local_at(w, within, bytes, lane);
    case Window::kParam:
      return param_at(w, within, bytes, lane);
  }
  fail_access(w, "generic", address, bytes, lane);
}

template <Space kSpace, Access kAccess>
uint8_t* memory_at(Warp& w, uint64_t address, uint64_t bytes, int lane) {
  if ((address & (bytes - 1)) != 0) fail_alignment(w, "memory", address, bytes, lane);
  if constexpr (kSpace == Space::kGlobal || kSpace == Space::kConst) return global_at(w, address, bytes, lane);
  if constexpr (kSpace == Space::kShared) return shared_at(w, address, bytes, lane, false, kAccess);
  if constexpr (kSpace == Space::kSharedCluster) return shared_at(w, address, bytes, lane, true, kAccess);
  if constexpr (kSpace == Space::kLocal) return local_at(w, address, bytes, lane);
  if constexpr (kSpace == Space::kParam) return param_at(w, address, bytes, lane);
  if constexpr (kSpace == Space::kGeneric) return generic_at(w, address, bytes, lane, kAccess);
}

// in.a + in.value; without a register the value alone.
inline uint64_t lane_address(Warp& w, const Instruction& in, int lane) {
  return (in.a.sink ? 0 : read_lane(w, in.a, lane)) + static_cast<uint64_t>(in.value);
}

template <class T>
T load_as(const uint8_t* from) {
  T v;
  std::memcpy(&v, from, sizeof(T));
  return v;
}

}  // namespace ptx
