// What the environment overrides in a tuning build (-DMEGAMLA_TUNE), for sweeps on a device.
#pragma once

#if defined(MEGAMLA_TUNE)
#include <cstdlib>
#endif

namespace megamla::cuda::linear {

inline int tuned([[maybe_unused]] const char* name, int otherwise) {
#if defined(MEGAMLA_TUNE)
  if (const char* chosen = std::getenv(name)) return std::atoi(chosen);
#endif
  return otherwise;
}

}  // namespace megamla::cuda::linear
