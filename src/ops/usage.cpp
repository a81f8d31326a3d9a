#include "ops/usage.hpp"

#include <array>
#include <atomic>

namespace megamla::ops {
namespace {

// A slot is claimed once, by its entry, and never given back; it counts as filled when `op` is there.
struct Slot {
  std::atomic<const void*> entry{nullptr};
  std::atomic<const char*> implementation{nullptr};
  std::atomic<const char*> op{nullptr};
  std::atomic<int64_t> calls{0};
};

std::array<Slot, 128>& slots() {
  static std::array<Slot, 128> instance;
  return instance;
}

}  // namespace

void note_use(const void* entry, const char* op, const char* implementation) {
  for (Slot& slot : slots()) {
    const void* owner = slot.entry.load(std::memory_order_acquire);
    if (owner == nullptr && slot.entry.compare_exchange_strong(owner, entry)) {
      slot.implementation.store(implementation, std::memory_order_relaxed);
      slot.op.store(op, std::memory_order_release);
      owner = entry;
    }
    if (owner != entry) continue;
    slot.calls.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

std::vector<Usage> usage() {
  std::vector<Usage> all;
  for (const Slot& slot : slots()) {
    const char* op = slot.op.load(std::memory_order_acquire);
    if (op != nullptr) all.push_back({op, slot.implementation.load(), slot.calls.load()});
  }
  return all;
}

}  // namespace megamla::ops
