// The built-in source of top-k rows: the short-context rule, and beyond it a stand-in for an indexer.
#include "core/c_boundary.hpp"
#include "core/validate.hpp"
#include "megamla/layer.h"
#include "ops/step_lists.hpp"

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
    const megamla_exec exec = MEGAMLA_EXEC_INIT;
    return ops::builtin_topk(*positions, compress_ratio, *topk, exec);
  });
}
