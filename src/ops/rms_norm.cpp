#include "megamla/rms_norm.h"

#include "cpu/rms_norm.hpp"
#include "cuda/rms_norm.hpp"
#include "ops/op.hpp"
#include "reference/rms_norm.hpp"

namespace megamla::ops {
namespace {

Status validate(const megamla_rms_norm_params& p, int32_t cuda_device) {
  constexpr int64_t kAny = Validator::kAny;
  Validator v("rms_norm", cuda_device);
  v.finite("eps", p.eps).require(p.eps >= 0, "eps", "a value of at least 0", p.eps);
  v.tensor("x", p.x, {MEGAMLA_BF16, MEGAMLA_F32}, {kAny, kAny}, 1);
  if (!v.ok()) return v.status();
  v.range("x width", p.x.shape[1], 1, int64_t{1} << 24);
  v.tensor("weight", p.weight, {MEGAMLA_BF16}, {p.x.shape[1]}, 0);
  v.tensor("y", p.y, {MEGAMLA_BF16}, {p.x.shape[0], p.x.shape[1]}, 1, Validator::Access::kWrite);
  v.no_overlap("y", p.y, "x", p.x).no_overlap("y", p.y, "weight", p.weight);
  return v.status();
}

megamla_limits limits_of(const megamla_rms_norm_params&) { return {}; }
int32_t memory_of(const megamla_rms_norm_params& p) { return p.x.cuda_device; }

constexpr Implementation<megamla_rms_norm_params> kImplementations[] = {
    {"cpu.rms_norm", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::rms_norm},
    {"reference.rms_norm", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::rms_norm},
#if MEGAMLA_HAVE_CUDA
    {"cuda.rms_norm", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::rms_norm},
#endif
};
constexpr Op<megamla_rms_norm_params> kOp{"rms_norm", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_rms_norm_init(megamla_rms_norm_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->eps = 1e-20F;
}
MEGAMLA_DEFINE_OP(rms_norm, megamla::ops::kOp)
