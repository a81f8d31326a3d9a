#include "megamla/output_cast.h"

#include "cpu/output_cast.hpp"
#include "cuda/output_cast.hpp"
#include "format/chunked.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/output_cast.hpp"

namespace megamla::ops {
namespace {

constexpr int64_t kAny = Validator::kAny;
constexpr auto kWrite = Validator::Access::kWrite;

void validate_attention_output(Validator& v, const megamla_output_cast_params& p) {
  v.tensor("in", p.in, {MEGAMLA_F32, MEGAMLA_BF16}, {kAny, kAny, 512}, 2);
  if (!v.ok()) return;
  v.multiple_of("in heads", p.in.shape[1], format::kGroupHeads);
  v.output_pair("out", p.out, "out_scale", p.out_scale, p.in.shape[0], p.in.shape[1] / format::kGroupHeads, kWrite);
}

void validate_mxfp8(Validator& v, const megamla_output_cast_params& p) {
  v.tensor("in", p.in, {MEGAMLA_F32, MEGAMLA_BF16}, {kAny, kAny}, 1);
  if (!v.ok()) return;
  const int64_t rows = p.in.shape[0];
  const int64_t columns = p.in.shape[1];
  v.range("in rows", rows, 0, int64_t{1} << 31).range("in columns", columns, 0, int64_t{1} << 31);
  v.multiple_of("in columns", columns, 32);
  if (!v.ok()) return;
  v.tensor("out", p.out, {MEGAMLA_F8_E4M3}, {rows, columns}, 0, kWrite);
  v.tensor("out_scale", p.out_scale, {MEGAMLA_F8_E8M0}, {format::f8_128x4_size(rows, columns / 32)}, 0, kWrite);
}

Status validate(const megamla_output_cast_params& p, int32_t cuda_device) {
  Validator v("output_cast", cuda_device);
  v.range("target", p.target, MEGAMLA_CAST_ATTENTION_OUTPUT, MEGAMLA_CAST_MXFP8);
  v.range("reserved", p.reserved, 0, 0);
  if (!v.ok()) return v.status();
  p.target == MEGAMLA_CAST_ATTENTION_OUTPUT ? validate_attention_output(v, p) : validate_mxfp8(v, p);
  check_apart(v, {{"out", &p.out}, {"out_scale", &p.out_scale}}, {{"in", &p.in}});
  return v.status();
}

megamla_limits limits_of(const megamla_output_cast_params&) { return {}; }
int32_t memory_of(const megamla_output_cast_params& p) { return p.in.cuda_device; }

constexpr Implementation<megamla_output_cast_params> kImplementations[] = {
    {"cpu.output_cast", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::output_cast},
    {"reference.output_cast", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::output_cast},
#if MEGAMLA_HAVE_CUDA
    {"cuda.output_cast", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::output_cast},
#endif
};
constexpr Op<megamla_output_cast_params> kOp{"output_cast", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_output_cast_init(megamla_output_cast_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
}
MEGAMLA_DEFINE_OP(output_cast, megamla::ops::kOp)
