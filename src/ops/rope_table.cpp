#include "megamla/rope_table.h"

#include "cpu/rope_table.hpp"
#include "cuda/rope_table.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/rope_table.hpp"

namespace megamla::ops {
namespace {

Status validate(const megamla_rope_table_params& p, int32_t cuda_device) {
  Validator v("rope_table", cuda_device);
  v.require(p.theta > 1, "theta", "a value above 1", p.theta).finite("theta", p.theta);
  v.require(p.factor >= 1, "factor", "a value of at least 1", p.factor).finite("factor", p.factor);
  if (p.factor > 1) {
    v.require(p.original_max_position > 0, "original_max_position", "a positive value", p.original_max_position)
        .finite("original_max_position", p.original_max_position);
    v.require(p.beta_slow > 0, "beta_slow", "a positive value", p.beta_slow);
    v.require(p.beta_fast > p.beta_slow, "beta_fast", fmt::format("a value above beta_slow = {}", p.beta_slow),
              p.beta_fast)
        .finite("beta_fast", p.beta_fast);
  }
  v.range("angles", p.angles, MEGAMLA_ROPE_EXACT, MEGAMLA_ROPE_FP32).range("reserved", p.reserved, 0, 0);
  v.tensor("cos_sin", p.cos_sin, {MEGAMLA_F32}, {Validator::kAny, 64}, 1, Validator::Access::kWrite);
  if (v.ok()) v.optional_tensor("positions", p.positions, {MEGAMLA_I64}, {p.cos_sin.shape[0]}, 1);
  if (!v.ok()) return v.status();
  Validator host("rope_table", -1);  // the frequencies are the caller's to read, wherever the table is
  host.optional_tensor("inv_freq", p.inv_freq, {MEGAMLA_F64}, {32}, 1, Validator::Access::kWrite);
  if (!host.ok()) return host.status();
  check_apart(v, {{"cos_sin", &p.cos_sin}, {"inv_freq", &p.inv_freq}}, {{"positions", &p.positions}});
  return v.status();
}

megamla_limits limits_of(const megamla_rope_table_params&) { return {}; }
int32_t memory_of(const megamla_rope_table_params& p) { return p.cos_sin.cuda_device; }

constexpr Implementation<megamla_rope_table_params> kImplementations[] = {
    {"cpu.rope_table", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::rope_table},
    {"reference.rope_table", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::rope_table},
#if MEGAMLA_HAVE_CUDA
    {"cuda.rope_table", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::rope_table},
#endif
};
constexpr Op<megamla_rope_table_params> kOp{"rope_table", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_rope_table_init(megamla_rope_table_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->theta = 10000;
  params->factor = 1;
  params->original_max_position = 65536;
  params->beta_fast = 32;
  params->beta_slow = 1;
}
MEGAMLA_DEFINE_OP(rope_table, megamla::ops::kOp)
