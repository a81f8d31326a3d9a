#include "core/threads.hpp"

#include <algorithm>

namespace megamla {

int resolve_threads(int64_t requested) {
  if (omp_in_parallel()) return 1;
  const int available = omp_get_max_threads();
  return requested <= 0 ? available : static_cast<int>(std::min<int64_t>(requested, 4096));
}

}  // namespace megamla
