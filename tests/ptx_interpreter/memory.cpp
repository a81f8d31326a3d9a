#include "memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

namespace ptx {
namespace {
constexpr uint64_t kGuard = 4096;  // inaccessible to kernels, on both sides
}

Memory& Memory::device() {
  static auto* memory = new Memory;  // never destroyed: static objects of others may free until the end
  return *memory;
}

void* Memory::allocate(uint64_t bytes) {
  const uint64_t mapped = (bytes + 4095) / 4096 * 4096 + 2 * kGuard;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const uint64_t begin = reinterpret_cast<uint64_t>(mapping) + kGuard;
  const std::unique_lock lock(mutex_);
  blocks_[begin] = {begin + bytes, mapping, mapped};
  return reinterpret_cast<void*>(begin);
}

bool Memory::release(void* pointer) {
  const std::unique_lock lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<uint64_t>(pointer));
  if (found == blocks_.end() || found->second.mapping == nullptr) return false;
  munmap(found->second.mapping, found->second.mapped);
  blocks_.erase(found);
  return true;
}

void Memory::add(const void* pointer, uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  const auto begin = reinterpret_cast<uint64_t>(pointer);
  blocks_[begin] = {begin + bytes, nullptr, 0};
}

void Memory::remove(const void* pointer) {
  const std::unique_lock lock(mutex_);
  blocks_.erase(reinterpret_cast<uint64_t>(pointer));
}

Range Memory::find(uint64_t address) const {
  const std::shared_lock lock(mutex_);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return {};
  const auto& [begin, block] = *--after;
  return address < block.end ? Range{begin, block.end} : Range{};
}

std::string Memory::describe(uint64_t address) const {
  const std::shared_lock lock(mutex_);
  std::string text;
  uint64_t nearest = ~uint64_t{0};
  for (const auto& [begin, block] : blocks_) {
    const uint64_t bytes = block.end - begin;
    const bool inside = address >= begin && address < block.end;
    const uint64_t distance = inside ? 0 : address < begin ? begin - address : address - block.end + 1;
    if (distance >= nearest) continue;
    nearest = distance;
    const char* place = address < begin ? "before" : "after";
    text = inside ? fmt::format("at byte {} of an allocation of {} bytes", address - begin, bytes)
                  : fmt::format("{} bytes {} the nearest allocation, of {} bytes at {:#x}",
                                address < begin ? begin - address : address - block.end, place, bytes, begin);
  }
  return text.empty() ? "there is no allocation" : text;
}

}  // namespace ptx
