#include "megamla/block_scaled_linear.h"

#include "cpu/block_scaled_linear.hpp"
#include "cuda/block_scaled_linear/block_scaled_linear.hpp"
#include "format/chunked.hpp"
#include "ops/op.hpp"
#include "plan/linear_shape.hpp"
#include "reference/block_scaled_linear.hpp"

namespace megamla::ops {
namespace {

using Params = megamla_block_scaled_linear_params;

// Strides (1, words * A, A); one that is never taken may be anything.
bool is_packed(const megamla_tensor& scale) {
  const int64_t tokens = scale.shape[0];
  const int64_t groups = scale.shape[1];
  const int64_t words = scale.shape[2];
  if (tokens > 1 && scale.stride[0] != 1) return false;
  if (words == 1) return groups == 1 || (scale.stride[1] >= tokens && scale.stride[1] % 4 == 0);
  const int64_t a = scale.stride[2];
  return a >= tokens && a % 4 == 0 && (groups == 1 || scale.stride[1] == words * a);
}

void check_input(Validator& v, const Params& p, const plan::LinearShape& s) {
  switch (p.input) {
    case MEGAMLA_LINEAR_IN_BF16:
      if (p.x.ndim == 2) {
        v.tensor("x", p.x, {MEGAMLA_BF16}, {s.tokens, s.in}, 1);
        v.require(
            s.groups == 1, "x", [&] { return fmt::format("[T, G, in] for {} groups", s.groups); }, p.x);
      } else {
        v.tensor("x", p.x, {MEGAMLA_BF16}, {s.tokens, s.groups, s.in}, 2);
      }
      v.absent("x_scale", p.x_scale, "x is BF16");
      break;
    case MEGAMLA_LINEAR_IN_FP8_PAIR: {
      v.multiple_of("x width", s.in, 128);
      v.tensor("x", p.x, {MEGAMLA_F8_E4M3}, {s.tokens, s.groups, s.in}, 2);
      v.tensor("x_scale", p.x_scale, {MEGAMLA_I32}, {s.tokens, s.groups, s.in / 128}, 3);
      if (!v.ok() || s.tokens == 0) break;
      const auto expected = [&] {
        return fmt::format("strides (1, {}*A, A) with A >= {} and A a multiple of 4", s.in / 128, s.tokens);
      };
      v.require(is_packed(p.x_scale), "x_scale", expected,
                [&] { return fmt::format("[{}]", fmt::join(p.x_scale.stride, p.x_scale.stride + 3, ", ")); });
      break;
    }
    default:
      v.require(s.groups == 1, "weight", "one group for an MXFP8 input", s.groups);
      v.tensor("x", p.x, {MEGAMLA_F8_E4M3}, {s.tokens, s.in}, 0);
      v.tensor("x_scale", p.x_scale, {MEGAMLA_F8_E8M0}, {format::f8_128x4_size(s.tokens, s.in / 32)}, 0);
  }
}

void check_weight(Validator& v, const Params& p, const plan::LinearShape& s) {
  const megamla_dtype dtype = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3;
  const auto grouped = [&](const char* name, const megamla_tensor& t, megamla_dtype type, int64_t rows,
                           int64_t columns) {
    if (t.ndim == 2 && s.groups == 1) {
      v.tensor(name, t, {type}, {rows, columns}, 0);
    } else {
      v.tensor(name, t, {type}, {s.groups, rows, columns}, 0);
    }
  };
  grouped("weight", p.weight, dtype, s.out, s.in);
  if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
    v.absent("weight_scale", p.weight_scale, "the weight is BF16");
  } else {
    const bool blocks = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
    if (blocks) v.multiple_of("weight rows", s.out, 32);
    grouped("weight_scale", p.weight_scale, MEGAMLA_F8_E8M0, blocks ? s.out / 32 : s.out, s.in / 32);
  }
}

void check_output(Validator& v, const Params& p, const plan::LinearShape& s) {
  constexpr auto kWrite = Validator::Access::kWrite;
  if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
    v.multiple_of("groups * out", s.groups * s.out, 128).multiple_of("weight rows", s.out, 32);
    v.tensor("y", p.y, {MEGAMLA_F8_E4M3}, {s.tokens, s.groups * s.out}, 0, kWrite);
    v.tensor("y_scale", p.y_scale, {MEGAMLA_F8_E8M0}, {format::f8_128x4_size(s.tokens, s.groups * s.out / 32)}, 0,
             kWrite);
    return;
  }
  const megamla_dtype dtype = p.output == MEGAMLA_LINEAR_OUT_F32 ? MEGAMLA_F32 : MEGAMLA_BF16;
  if (p.y.ndim == 2 && s.groups == 1) {
    v.tensor("y", p.y, {dtype}, {s.tokens, s.out}, 1, kWrite);
  } else {
    v.tensor("y", p.y, {dtype}, {s.tokens, s.groups, s.out}, 2, kWrite);
  }
  v.absent("y_scale", p.y_scale, "y is not MXFP8");
}

Status validate(const Params& p, int32_t cuda_device) {
  Validator v("block_scaled_linear", cuda_device);
  v.range("input", p.input, MEGAMLA_LINEAR_IN_BF16, MEGAMLA_LINEAR_IN_MXFP8);
  v.range("weight_kind", p.weight_kind, MEGAMLA_LINEAR_WEIGHT_BF16, MEGAMLA_LINEAR_WEIGHT_ROW_32);
  v.range("output", p.output, MEGAMLA_LINEAR_OUT_BF16, MEGAMLA_LINEAR_OUT_MXFP8);
  v.require(p.x.ndim == 2 || p.x.ndim == 3, "x", "[T, in] or [T, G, in]", p.x);
  v.require(p.weight.ndim == 2 || p.weight.ndim == 3, "weight", "[out, in] or [G, out, in]", p.weight);
  if (!v.ok()) return v.status();
  const plan::LinearShape s = plan::linear_shape(p);
  v.range("x tokens", s.tokens, 0, int64_t{1} << 31).range("weight groups", s.groups, 1, 1024);
  v.range("weight columns", s.in, 32, int64_t{1} << 24).multiple_of("weight columns", s.in, 32);
  v.range("weight rows", s.out, 1, int64_t{1} << 24);
  if (!v.ok()) return v.status();
  check_input(v, p, s);
  check_weight(v, p, s);
  check_output(v, p, s);
  for (const auto& [name, out] : {std::pair{"y", &p.y}, std::pair{"y_scale", &p.y_scale}}) {
    v.no_overlap(name, *out, "x", p.x).no_overlap(name, *out, "x_scale", p.x_scale);
    v.no_overlap(name, *out, "weight", p.weight).no_overlap(name, *out, "weight_scale", p.weight_scale);
  }
  v.no_overlap("y", p.y, "y_scale", p.y_scale);
  return v.status();
}

megamla_limits limits_of(const Params& p) {
  const plan::LinearShape s = plan::linear_shape(p);
  megamla_limits limits{};
  limits.tokens = s.tokens;
  limits.groups = s.groups;
  limits.in_features = s.in;
  limits.out_features = s.out;
  return limits;
}

int32_t memory_of(const Params& p) { return p.x.cuda_device; }

constexpr Implementation<Params> kImplementations[] = {
    {"cpu.avx512_bf16", MEGAMLA_DEVICE_CPU, cpu::block_scaled_linear_dots_supports,
     cpu::block_scaled_linear_bf16_workspace, cpu::block_scaled_linear_dots},
    {"cpu.onednn_bf16", MEGAMLA_DEVICE_CPU, cpu::block_scaled_linear_bf16_supports,
     cpu::block_scaled_linear_bf16_workspace, cpu::block_scaled_linear_bf16},
    {"cpu.onednn_f32", MEGAMLA_DEVICE_CPU, supports_all, cpu::block_scaled_linear_f32_workspace,
     cpu::block_scaled_linear_f32},
    {"reference.block_scaled_linear", MEGAMLA_DEVICE_REFERENCE, supports_all, no_workspace,
     reference::block_scaled_linear},
#if MEGAMLA_HAVE_CUDA
    {"cuda.block_scaled_linear", MEGAMLA_DEVICE_CUDA, cuda::block_scaled_linear_supports, no_workspace,
     cuda::block_scaled_linear},
#endif
};
constexpr Op<Params> kOp{"block_scaled_linear", validate, limits_of, memory_of, kImplementations};

}  // namespace
}  // namespace megamla::ops

extern "C" void megamla_block_scaled_linear_init(megamla_block_scaled_linear_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
}
MEGAMLA_DEFINE_OP(block_scaled_linear, megamla::ops::kOp)
