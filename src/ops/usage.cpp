#include "ops/usage.hpp"

#include <array>
#include <atomic>

namespace megamla::ops {
namespace {

// Names are published with the slot's `implementation`; a slot is claimed once and never given back.
struct Slot {
  std::atomic<const char*> implementation{nullptr};
  std::atomic<const char*> op{nullptr};
  std::atomic<int64_t> calls{0};
};

std::array<Slot, 128>& slots() {
  static std::array<Slot, 128> instance;
  return instance;
}

}  // namespace

void note_use(const char* op, const char* implementation) {
  for (Slot& slot : slots()) {
    const char* owner = slot.implementation.load(std::memory_order_acquire);
    if (owner == nullptr && slot.implementation.compare_exchange_strong(owner, implementation)) {
      slot.op.store(op, std::memory_order_release);
      owner = implementation;
    }
    if (owner != implementation) continue;
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
