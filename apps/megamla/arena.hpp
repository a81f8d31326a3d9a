// Memory that the program hands to ops.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "megamla/types.h"

namespace megamla::app {

// Buffers that an op works on and that the program fills and reads itself, freed together. For the reference and the
// CPU that is host memory. This class is the one place that a GPU's buffers, readable from both sides, come from: it
// would allocate them, give their `cuda_device`, and wait in `synchronise`. Throws std::bad_alloc.
class Arena {
 public:
  // `limit`: bytes in all; beyond it memory counts as exhausted. For sizes that come from a file.
  explicit Arena(int64_t limit = INT64_MAX) : left_(limit) {}
  // Aligned to 256 bytes and exactly this long, so that a sanitizer sees the first byte beyond.
  void* bytes(int64_t count, uint8_t fill = 0);
  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, uint8_t fill = 0);

  // Where the buffers are, as in megamla_tensor.
  int32_t cuda_device() const { return -1; }
  // After it, results of the ops called so far may be read.
  void synchronise() const {}

 private:
  struct Free {
    void operator()(void* p) const;
  };
  int64_t left_;
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

}  // namespace megamla::app
