// Carves an op's scratch out of the caller's workspace. The same calls on a null base measure it.
#pragma once

#include <cstdint>

#include "format/chunked.hpp"

namespace megamla::cpu {

class Scratch {
 public:
  explicit Scratch(void* base) : base_(static_cast<char*>(base)) {}

  // `count` elements of T, aligned to a cache line. Null while measuring.
  template <class T>
  T* take(int64_t count) {
    char* begin = base_ == nullptr ? nullptr : base_ + used_;
    used_ += format::round_up(count * static_cast<int64_t>(sizeof(T)), kCacheLine);
    return reinterpret_cast<T*>(begin);
  }
  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kCacheLine = 64;
  char* base_;
  int64_t used_ = 0;
};

}  // namespace megamla::cpu
