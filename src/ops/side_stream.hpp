// A second stream of the caller, for what need not wait for a layer's main chain. Nothing to do on a host, or where the
// two are one.
#pragma once

#include "core/status.hpp"
#include "cuda/side_stream.hpp"
#include "megamla/types.h"

namespace megamla::ops {

class SideStream {
 public:
  Status prepare([[maybe_unused]] int32_t cuda_device) {
#if MEGAMLA_HAVE_CUDA
    if (cuda_device >= 0) return events_.prepare(cuda_device);
#endif
    return {};
  }
  // Where the streams of a step meet.
  enum Point { kProjected, kEnd };
  // What `second` gets from now on runs after what `first` has got so far.
  Status order([[maybe_unused]] Point point, [[maybe_unused]] const megamla_exec& first,
               [[maybe_unused]] const megamla_exec& second) const {
#if MEGAMLA_HAVE_CUDA
    if (first.stream != second.stream) return events_.order(point, first.stream, second.stream);
#endif
    return {};
  }

#if MEGAMLA_HAVE_CUDA
 private:
  cuda::SideStream events_;
#endif
};

}  // namespace megamla::ops
