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
  Status fork([[maybe_unused]] const megamla_exec& main, [[maybe_unused]] const megamla_exec& side) const {
#if MEGAMLA_HAVE_CUDA
    if (main.stream != side.stream) return events_.fork(main.stream, side.stream);
#endif
    return {};
  }
  Status join([[maybe_unused]] const megamla_exec& main, [[maybe_unused]] const megamla_exec& side) const {
#if MEGAMLA_HAVE_CUDA
    if (main.stream != side.stream) return events_.join(main.stream, side.stream);
#endif
    return {};
  }

#if MEGAMLA_HAVE_CUDA
 private:
  cuda::SideStream events_;
#endif
};

}  // namespace megamla::ops
