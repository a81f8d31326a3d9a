// Lists that a layer derives from a step's metadata, element by element, for host and device.
#pragma once

#include <cstdint>

#include "format/host_device.hpp"
#include "plan/index_elements.hpp"

namespace megamla::plan {

// Compressed keys that the token at a position sees; none for a negative position.
MEGAMLA_HD constexpr int64_t compressed_keys(int64_t position, int64_t ratio) {
  if (position < 0) return 0;
  return ((position < INT32_MAX ? position : INT32_MAX - 1) + 1) / ratio;
}

// Column `column` of the built-in top-k row of a token that sees `keys` compressed keys: all of them while they fit;
// else an even spread over the older ones, then the newest half.
MEGAMLA_HD constexpr int32_t builtin_topk_column(int64_t keys, int64_t width, int64_t column) {
  if (keys <= width) return column < keys ? static_cast<int32_t>(column) : -1;
  const int64_t recent = (width + 1) / 2;
  const int64_t spread = width - recent;
  const int64_t older = keys - recent;  // > spread
  return static_cast<int32_t>(column < spread ? column * older / spread : older + column - spread);
}

// Rows that a gathered prefill of a request reads from either cache.
struct GatheredLens {
  int32_t window;
  int32_t compressed;
};
MEGAMLA_HD constexpr GatheredLens gathered_lens(const RaggedBatch& batch, int64_t request, int64_t window,
                                                int64_t ratio) {
  const int32_t compressed = ratio > 0 ? batch.seq_lens[request] / static_cast<int32_t>(ratio) : 0;
  return {prefill_gather_len(batch.query(request), window), compressed};
}

}  // namespace megamla::plan
