// Work over the one OpenMP pool that oneDNN uses too.
#pragma once

#include <omp.h>

#include <cstdint>

namespace megamla {

// 0 or less = all cores that OpenMP may use; 1 inside a parallel region.
int resolve_threads(int64_t requested);

// Calls body(begin, end, worker) for disjoint ranges that cover [0, count), worker < threads. Static split, so scratch
// can be per worker; a result must depend on the item alone.
template <class Body>
void parallel_ranges(int64_t count, int threads, Body&& body) {
  if (count <= 0) return;
  const int64_t workers = threads < count ? threads : count;
  if (workers <= 1) {
    body(int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(workers)) schedule(static, 1)
  for (int64_t w = 0; w < workers; ++w) {
    body(count * w / workers, count * (w + 1) / workers, static_cast<int>(w));
  }
}

// Calls body(item, worker), items handed out as workers become free: for items of unequal cost.
template <class Body>
void parallel_items(int64_t count, int threads, Body&& body) {
  if (count <= 0) return;
  const int workers = static_cast<int>(threads < count ? threads : count);
  if (workers <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
  for (int64_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
}

}  // namespace megamla
