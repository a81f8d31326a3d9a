// Buffers that tests hand to ops register themselves here, so that a call on a GPU can take all of a buffer along,
// guard bytes included.
#pragma once

#include <cstddef>

namespace megamla::test {

struct Span {
  char* begin = nullptr;
  size_t bytes = 0;
};

class HostRegion {
 public:
  HostRegion(void* begin, size_t bytes);
  ~HostRegion();
  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;

  // The live region that holds `p`; no bytes if there is none.
  static Span around(const void* p);

 private:
  void* begin_;
};

}  // namespace megamla::test
