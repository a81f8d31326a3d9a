// Ops are called through their C entry points, as every other caller does.
#pragma once

#include "core/status.hpp"

namespace megamla::layer {

inline Status call(megamla_status status) {
  return status == MEGAMLA_OK ? Status{} : Status{status, megamla_last_error()};
}

}  // namespace megamla::layer
