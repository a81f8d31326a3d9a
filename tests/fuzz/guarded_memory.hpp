// Memory that ends where an unreadable page begins: the first byte beyond an allocation is a fault, also for code that
// no sanitizer has instrumented (oneDNN). AddressSanitizer, where it is on, guards the bytes before it as well.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "support/sanitizers.hpp"

#if MEGAMLA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace megamla::fuzz {

// One allocation. `bytes` of it are the caller's; what alignment leaves behind them is guarded by AddressSanitizer.
struct Block {
  uint8_t* begin = nullptr;
  int64_t bytes = 0;
  uint8_t* end() const { return begin + bytes; }
};

class GuardedMemory {
 public:
  static constexpr int64_t kCapacity = int64_t{32} << 20;  // of one block; address space, not memory

  static GuardedMemory& instance() {
    static GuardedMemory memory;
    return memory;
  }

  // A new block, filled with `fill`. Ends at the guard page as closely as the alignment (a power of two) allows.
  Block take(int64_t bytes, int64_t alignment, uint8_t fill) {
    if (bytes < 0 || bytes > kCapacity || used_ == kBlocks) std::abort();  // the harness asks for too much
    uint8_t* end = begin_ + used_ * kStep + kCapacity;
    uint8_t* begin = end - (bytes + alignment - 1) / alignment * alignment;
    blocks_[used_++] = {begin, bytes};
    unpoison(begin, bytes);
    std::memset(begin, fill, static_cast<size_t>(bytes));
    return {begin, bytes};
  }

  // Every block is given back.
  void reset() {
    for (int64_t i = 0; i < used_; ++i) poison(blocks_[i].begin, blocks_[i].bytes);
    used_ = 0;
  }

  // The bytes between `p` and the end of the block that holds it; -1: p is in none.
  int64_t room_at(const void* p) const {
    const auto* byte = static_cast<const uint8_t*>(p);
    for (int64_t i = 0; i < used_; ++i) {
      if (byte >= blocks_[i].begin && byte <= blocks_[i].end()) return blocks_[i].end() - byte;
    }
    return -1;
  }

  int64_t count() const { return used_; }
  const Block& block(int64_t i) const { return blocks_[i]; }

 private:
  static constexpr int64_t kBlocks = 32;
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kStep = kCapacity + kPage;

  GuardedMemory() {
    constexpr auto kBytes = static_cast<size_t>(kBlocks * kStep);
    void* all = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) std::abort();
    begin_ = static_cast<uint8_t*>(all);
    for (int64_t i = 0; i < kBlocks; ++i) {
      uint8_t* block = begin_ + i * kStep;
      if (mprotect(block, static_cast<size_t>(kCapacity), PROT_READ | PROT_WRITE) != 0) std::abort();
      poison(block, kCapacity);
    }
  }

  static void poison([[maybe_unused]] const void* begin, [[maybe_unused]] int64_t bytes) {
#if MEGAMLA_ADDRESS_SANITIZER
    ASAN_POISON_MEMORY_REGION(begin, static_cast<size_t>(bytes));
#endif
  }
  static void unpoison([[maybe_unused]] const void* begin, [[maybe_unused]] int64_t bytes) {
#if MEGAMLA_ADDRESS_SANITIZER
    ASAN_UNPOISON_MEMORY_REGION(begin, static_cast<size_t>(bytes));
#endif
  }

  uint8_t* begin_ = nullptr;
  Block blocks_[kBlocks];
  int64_t used_ = 0;
};

}  // namespace megamla::fuzz
