// Blocks of cache pages, reference-counted so that requests may share a prefix.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace megamla::replay {

class BlockPool {
 public:
  explicit BlockPool(int64_t blocks) : references_(static_cast<size_t>(blocks), 0) {
    for (int64_t b = blocks - 1; b >= 0; --b) free_.push_back(static_cast<int32_t>(b));
  }

  int64_t available() const { return static_cast<int64_t>(free_.size()); }
  int64_t in_use() const { return static_cast<int64_t>(references_.size()) - available(); }
  int64_t peak() const { return peak_; }

  int32_t take() {
    if (free_.empty()) throw std::logic_error("block pool: expected a free block, found none");
    const int32_t block = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(block)] = 1;
    if (in_use() > peak_) peak_ = in_use();
    return block;
  }
  void share(int32_t block) { ++references_[static_cast<size_t>(block)]; }
  void release(int32_t block) {
    if (--references_[static_cast<size_t>(block)] == 0) free_.push_back(block);
  }

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
  int64_t peak_ = 0;
};

}  // namespace megamla::replay
