// Asks for cache lines before they are needed.
#pragma once

#include <cstdint>

namespace megamla::cpu {

inline void fetch(const void* begin, int64_t bytes) {
  constexpr int64_t kCacheLine = 64;
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(begin) + i);
  asm volatile("");  // GCC takes a function that only prefetches for one without effect, and drops the calls of it
}

}  // namespace megamla::cpu
