// A std::vector that begins at a cache line, so that the vector loads of aligned rows cross none.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace megamla {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>&) {}

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

}  // namespace megamla
