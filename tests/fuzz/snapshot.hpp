// Copies of guarded memory: what a call has changed, and the way back.
#pragma once

#include <algorithm>
#include <vector>

#include "core/tensor.hpp"
#include "fuzz/finding.hpp"
#include "fuzz/guarded_memory.hpp"

namespace megamla::fuzz {

// The bytes of the first `count` blocks at one time.
class Snapshot {
 public:
  explicit Snapshot(int64_t count = GuardedMemory::instance().count()) {
    const GuardedMemory& memory = GuardedMemory::instance();
    for (int64_t i = 0; i < count; ++i) {
      const Block& block = memory.block(i);
      begins_.push_back(block.begin);
      bytes_.emplace_back(block.begin, block.end());
    }
  }
  void restore() const {
    for (size_t i = 0; i < bytes_.size(); ++i) std::copy(bytes_[i].begin(), bytes_[i].end(), begins_[i]);
  }
  size_t blocks() const { return bytes_.size(); }
  const std::vector<uint8_t>& block(size_t i) const { return bytes_[i]; }

  // The snapshot's bytes of an address, of a view.
  const uint8_t* of(const uint8_t* byte) const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (byte >= begins_[i] && byte <= begins_[i] + bytes_[i].size()) return bytes_[i].data() + (byte - begins_[i]);
    }
    return byte;
  }
  megamla_tensor of(megamla_tensor t) const {
    t.data = const_cast<uint8_t*>(of(static_cast<const uint8_t*>(t.data)));
    return t;
  }

 private:
  std::vector<uint8_t*> begins_;
  std::vector<std::vector<uint8_t>> bytes_;
};

// `who` may not have written anything since.
inline void expect_unchanged(const Snapshot& before, const char* who, const char* what = "a refused call") {
  const Snapshot after(static_cast<int64_t>(before.blocks()));
  for (size_t i = 0; i < before.blocks(); ++i) {
    require(before.block(i) == after.block(i), "{}: {} has written to block {}", who, what, i);
  }
}

}  // namespace megamla::fuzz
