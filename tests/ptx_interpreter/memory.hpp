// The memory of the device: which addresses are live. A global address is the host's own.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace ptx {

struct Range {
  uint64_t begin = 1;
  uint64_t end = 0;
  bool holds(uint64_t first, uint64_t last) const { return first >= begin && last <= end; }
};

class Memory {
 public:
  static Memory& device();

  // With room around it that belongs to no allocation; nullptr where there is no such memory.
  void* allocate(uint64_t bytes);
  bool release(void* pointer);
  void add(const void* pointer, uint64_t bytes);  // memory of somebody else: a module's variables, pinned memory
  void remove(const void* pointer);               // what was added
  Range find(uint64_t address) const;             // the allocation that holds the address; empty: none
  std::string describe(uint64_t address) const;   // the address against the nearest allocation

 private:
  struct Block {
    uint64_t end;
    void* mapping;  // nullptr: not allocated here
    uint64_t mapped;
  };
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Block> blocks_;
};

// Generic addresses: bits 56 .. 63 name the window, global memory has none.
enum class Window : uint64_t { kGlobal = 0, kShared = 1, kLocal = 2, kParam = 3 };
constexpr int kWindowShift = 56;
constexpr uint64_t window_base(Window w) { return static_cast<uint64_t>(w) << kWindowShift; }

// A shared address, 32 bits: the block's rank in its cluster, then the offset. As on a device, the first KB is not the
// program's.
constexpr int kRankShift = 24;
constexpr uint32_t kSharedBegin = 1024;
constexpr uint32_t kSharedOffsetMask = (1U << kRankShift) - 1;

}  // namespace ptx
