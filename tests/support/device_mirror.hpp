// A call's host memory on a GPU and back again: for implementations that read device memory.
#pragma once

#include <string>
#include <vector>

#include "megamla/types.h"
#include "support/host_region.hpp"

namespace megamla::test {

// Why no GPU can be used here; empty if one can.
std::string gpu_missing();

// Copies of whole regions (host_region.hpp): what an op must not touch around its tensors comes back too.
class DeviceMirror {
 public:
  DeviceMirror() = default;
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  // Points a view at the GPU's copy of its region.
  void take(megamla_tensor& tensor);
  void take(megamla_kv_cache& cache);
  void* allocate(int64_t bytes);
  // Waits for the GPU, then copies every region back over the host's.
  void give_back();

 private:
  struct Copy {
    Span host;
    char* device;
  };
  void* translate(void* host);

  std::vector<Copy> copies_;
  std::vector<void*> allocations_;
};

}  // namespace megamla::test
