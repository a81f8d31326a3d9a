// The built-in source of top-k rows: the short-context rule, and beyond it a stand-in for an indexer.
#include <algorithm>

#include "core/c_boundary.hpp"
#include "core/tensor.hpp"
#include "core/validate.hpp"
#include "megamla/layer.h"

namespace megamla::layer {
namespace {

// The row of a token that sees `keys` compressed keys: all of them while they fit; else keys/width-spread old ones,
// then the newest half.
void fill_row(int64_t keys, int64_t width, const megamla_tensor& topk, int64_t row) {
  if (keys <= width) {
    for (int64_t k = 0; k < width; ++k) at<int32_t>(topk, row, k) = k < keys ? static_cast<int32_t>(k) : -1;
    return;
  }
  const int64_t recent = (width + 1) / 2;
  const int64_t spread = width - recent;
  const int64_t older = keys - recent;  // > spread
  for (int64_t k = 0; k < spread; ++k) at<int32_t>(topk, row, k) = static_cast<int32_t>(k * older / spread);
  for (int64_t k = 0; k < recent; ++k) at<int32_t>(topk, row, spread + k) = static_cast<int32_t>(older + k);
}

}  // namespace
}  // namespace megamla::layer

extern "C" megamla_status megamla_builtin_topk(const megamla_tensor* positions, int64_t compress_ratio,
                                               const megamla_tensor* topk) {
  using namespace megamla;  // NOLINT(google-build-using-namespace)
  return guard([&]() -> Status {
    if (positions == nullptr || topk == nullptr)
      return invalid_argument("builtin_topk: positions, topk: expected tensors, got NULL");
    Validator v("builtin_topk", -1);
    v.range("compress_ratio", compress_ratio, 1, 2);
    v.tensor("positions", *positions, {MEGAMLA_I32, MEGAMLA_I64}, {Validator::kAny}, 1);
    if (v.ok())
      v.tensor("topk", *topk, {MEGAMLA_I32}, {positions->shape[0], Validator::kAny}, 2, Validator::Access::kWrite);
    v.no_overlap("topk", *topk, "positions", *positions);
    MEGAMLA_RETURN_IF_ERROR(v.status());
    for (int64_t t = 0; t < positions->shape[0]; ++t) {
      const int64_t position = std::min<int64_t>(index_at(*positions, t), INT32_MAX - 1);
      layer::fill_row(position < 0 ? 0 : (position + 1) / compress_ratio, topk->shape[1], *topk, t);
    }
    return {};
  });
}
