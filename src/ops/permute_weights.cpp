#include "megamla/permute_weights.h"

#include "cpu/permute_weights.hpp"
#include "cuda/permute_weights.hpp"
#include "format/chunked.hpp"
#include "ops/check_apart.hpp"
#include "ops/op.hpp"
#include "reference/permute_weights.hpp"

namespace megamla::ops {
namespace {

constexpr int64_t kAny = Validator::kAny;
constexpr auto kWrite = Validator::Access::kWrite;

constexpr auto kAnyDtype = {MEGAMLA_U8,  MEGAMLA_I32,  MEGAMLA_I64,     MEGAMLA_F32,
                            MEGAMLA_F64, MEGAMLA_BF16, MEGAMLA_F8_E4M3, MEGAMLA_F8_E8M0};

// Q, PAD_Q, O, O_CHUNKS: [n, heads or groups, width] of any dtype.
void validate_elements(Validator& v, const megamla_permute_weights_params& p, int64_t width) {
  v.tensor("in", p.in, kAnyDtype, {kAny, kAny, width}, 0);
  if (!v.ok()) return;
  const bool pads = p.kind == MEGAMLA_PERMUTE_PAD_Q;
  const auto dtype = static_cast<megamla_dtype>(p.in.dtype);
  v.tensor("out", p.out, {dtype}, {p.in.shape[0], pads ? kAny : p.in.shape[1], width}, 0, kWrite);
  if (v.ok() && pads) v.range("out heads", p.out.shape[1], p.in.shape[1], 1 << 20);
  constexpr const char* kWhy = "this kind has no scales";
  v.absent("in_scale", p.in_scale, kWhy).absent("out_scale", p.out_scale, kWhy);
  v.absent("out_scale_packed", p.out_scale_packed, kWhy);
}

void validate_wq_b(Validator& v, const megamla_permute_weights_params& p) {
  v.tensor("in", p.in, {MEGAMLA_F8_E4M3}, {kAny, kAny}, 0);
  if (!v.ok()) return;
  const int64_t rows = p.in.shape[0];
  const int64_t columns = p.in.shape[1];
  v.multiple_of("in rows", rows, 512).multiple_of("in columns", columns, 32);
  v.tensor("in_scale", p.in_scale, {MEGAMLA_F8_E8M0}, {rows / 32, columns / 32}, 0);
  v.tensor("out", p.out, {MEGAMLA_F8_E4M3}, {rows, columns}, 0, kWrite);
  v.tensor("out_scale", p.out_scale, {MEGAMLA_F8_E8M0}, {rows, columns / 32}, 0, kWrite);
  v.optional_tensor("out_scale_packed", p.out_scale_packed, {MEGAMLA_I32},
                    {format::round_up(columns / 32, 4) / 4, rows}, 0, kWrite);
}

void validate_wo_a(Validator& v, const megamla_permute_weights_params& p) {
  v.tensor("in", p.in, {MEGAMLA_F8_E4M3}, {kAny, format::kGroupWidth}, 0);
  v.tensor("out", p.out, {MEGAMLA_F8_E4M3}, {kAny, kAny, format::kGroupWidth}, 0, kWrite);
  if (!v.ok()) return;
  const int64_t rows = p.in.shape[0];
  const int64_t groups = p.out.shape[0];
  const int64_t d = p.out.shape[1];
  v.multiple_of("out rows per group", d, 32);
  v.require(groups * d == rows, "out", fmt::format("as many rows as in: {}", rows),
            fmt::format("{} groups of {}", groups, d));
  v.tensor("in_scale", p.in_scale, {MEGAMLA_F8_E8M0}, {rows / 32, format::kGroupChunks}, 0);
  v.tensor("out_scale", p.out_scale, {MEGAMLA_F8_E8M0}, {groups, d, format::kGroupChunks}, 0, kWrite);
  v.optional_tensor("out_scale_packed", p.out_scale_packed, {MEGAMLA_I32}, {groups, format::kGroupScaleWords, d}, 0,
                    kWrite);
}

Status validate(const megamla_permute_weights_params& p, int32_t cuda_device) {
  Validator v("permute_weights", cuda_device);
  v.range("kind", p.kind, MEGAMLA_PERMUTE_Q, MEGAMLA_PERMUTE_WO_A);
  v.range("reserved", p.reserved, 0, 0);
  if (!v.ok()) return v.status();
  switch (static_cast<megamla_permute_kind>(p.kind)) {
    case MEGAMLA_PERMUTE_Q:
    case MEGAMLA_PERMUTE_PAD_Q:
      validate_elements(v, p, 512);
      break;
    case MEGAMLA_PERMUTE_O:
      validate_elements(v, p, format::kGroupWidth);
      break;
    case MEGAMLA_PERMUTE_O_CHUNKS:
      validate_elements(v, p, format::kGroupChunks);
      break;
    case MEGAMLA_PERMUTE_WQ_B:
      validate_wq_b(v, p);
      break;
    case MEGAMLA_PERMUTE_WO_A:
      validate_wo_a(v, p);
      break;
  }
  check_apart(v, {{"out", &p.out}, {"out_scale", &p.out_scale}, {"out_scale_packed", &p.out_scale_packed}},
              {{"in", &p.in}, {"in_scale", &p.in_scale}});
  return v.status();
}

megamla_limits limits_of(const megamla_permute_weights_params&) { return {}; }
int32_t memory_of(const megamla_permute_weights_params& p) { return p.in.cuda_device; }

constexpr Implementation<megamla_permute_weights_params> kImplementations[] = {
    {"cpu.permute_weights", MEGAMLA_DEVICE_CPU, supports_all, no_workspace, cpu::permute_weights},
    {"reference.permute_weights", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace, reference::permute_weights},
#if MEGAMLA_HAVE_CUDA
    {"cuda.permute_weights", MEGAMLA_DEVICE_CUDA, supports_all, no_workspace, cuda::permute_weights},
#endif
};
constexpr Op<megamla_permute_weights_params> kOp{"permute_weights", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_permute_weights_init(megamla_permute_weights_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
}
MEGAMLA_DEFINE_OP(permute_weights, megamla::ops::kOp)
