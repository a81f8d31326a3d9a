// Ops on dense rows and weights: block_scaled_linear, output_cast, permute_weights, rms_norm, rope_table.
#include "call.hpp"

namespace megamla::python {
namespace {

void block_scaled_linear(int64_t input, int64_t weight_kind, int64_t output, bool batch_invariant, DLTensor* x,
                         MaybeTensor x_scale, DLTensor* weight, MaybeTensor weight_scale, DLTensor* out,
                         MaybeTensor out_scale, int64_t device, int64_t num_threads, MaybeTensor workspace) {
  Call call("block_scaled_linear", {device, num_threads, workspace});
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  p.input = static_cast<int32_t>(input);
  p.weight_kind = static_cast<int32_t>(weight_kind);
  p.output = static_cast<int32_t>(output);
  p.batch_invariant = batch_invariant ? 1 : 0;
  p.x = call.tensor("x", x, {input == MEGAMLA_LINEAR_IN_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3});
  p.x_scale = call.tensor("x_scale", x_scale, {input == MEGAMLA_LINEAR_IN_FP8_PAIR ? MEGAMLA_I32 : MEGAMLA_F8_E8M0});
  p.weight =
      call.tensor("weight", weight, {weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3});
  p.weight_scale = call.tensor("weight_scale", weight_scale, {MEGAMLA_F8_E8M0});
  p.y = call.tensor("y", out,
                    {output == MEGAMLA_LINEAR_OUT_BF16  ? MEGAMLA_BF16
                     : output == MEGAMLA_LINEAR_OUT_F32 ? MEGAMLA_F32
                                                        : MEGAMLA_F8_E4M3});
  p.y_scale = call.tensor("y_scale", out_scale, {MEGAMLA_F8_E8M0});
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.x.shape[0];
  limits.groups = p.weight.ndim == 3 ? p.weight.shape[0] : 1;
  limits.out_features = p.weight.ndim >= 2 ? p.weight.shape[p.weight.ndim - 2] : 0;
  limits.in_features = p.weight.ndim >= 2 ? p.weight.shape[p.weight.ndim - 1] : 0;
  call.run(megamla_block_scaled_linear, p, megamla_block_scaled_linear_workspace_size, limits);
}

void output_cast(int64_t target, DLTensor* in, DLTensor* out, DLTensor* out_scale, int64_t device, int64_t num_threads,
                 MaybeTensor workspace) {
  Call call("output_cast", {device, num_threads, workspace});
  megamla_output_cast_params p;
  megamla_output_cast_init(&p);
  p.target = static_cast<int32_t>(target);
  p.in = call.tensor("in", in, {MEGAMLA_F32, MEGAMLA_BF16});
  p.out = call.tensor("out", out, {MEGAMLA_F8_E4M3});
  p.out_scale = call.tensor("out_scale", out_scale, {target == MEGAMLA_CAST_MXFP8 ? MEGAMLA_F8_E8M0 : MEGAMLA_I32});
  call.run(megamla_output_cast, p);
}

void permute_weights(int64_t kind, DLTensor* in, MaybeTensor in_scale, DLTensor* out, MaybeTensor out_scale,
                     MaybeTensor out_scale_packed, int64_t device, int64_t num_threads, MaybeTensor workspace) {
  Call call("permute_weights", {device, num_threads, workspace});
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = static_cast<int32_t>(kind);
  const bool weights = kind == MEGAMLA_PERMUTE_WQ_B || kind == MEGAMLA_PERMUTE_WO_A;
  const Dtypes fp8 = {MEGAMLA_F8_E4M3};
  const Dtypes any = {};
  p.in = call.tensor("in", in, weights ? fp8 : any);
  p.in_scale = call.tensor("in_scale", in_scale, {MEGAMLA_F8_E8M0});
  p.out = call.tensor("out", out, weights ? fp8 : any);
  p.out_scale = call.tensor("out_scale", out_scale, {MEGAMLA_F8_E8M0});
  p.out_scale_packed = call.tensor("out_scale_packed", out_scale_packed, {MEGAMLA_I32});
  call.run(megamla_permute_weights, p);
}

void rms_norm(DLTensor* x, DLTensor* weight, double eps, DLTensor* out, int64_t device, int64_t num_threads,
              MaybeTensor workspace) {
  Call call("rms_norm", {device, num_threads, workspace});
  megamla_rms_norm_params p;
  megamla_rms_norm_init(&p);
  p.eps = static_cast<float>(eps);
  p.x = call.tensor("x", x, {MEGAMLA_BF16, MEGAMLA_F32});
  p.weight = call.tensor("weight", weight, {MEGAMLA_BF16});
  p.y = call.tensor("y", out, {MEGAMLA_BF16});
  call.run(megamla_rms_norm, p);
}

void rope_table(double theta, double factor, double original_max_position, double beta_fast, double beta_slow,
                int64_t angles, MaybeTensor positions, DLTensor* out, MaybeTensor inv_freq, int64_t device,
                int64_t num_threads, MaybeTensor workspace) {
  Call call("rope_table", {device, num_threads, workspace});
  megamla_rope_table_params p;
  megamla_rope_table_init(&p);
  p.theta = theta;
  p.factor = factor;
  p.original_max_position = original_max_position;
  p.beta_fast = beta_fast;
  p.beta_slow = beta_slow;
  p.angles = static_cast<int32_t>(angles);
  p.positions = call.tensor("positions", positions, {MEGAMLA_I64});
  p.cos_sin = call.tensor("cos_sin", out, {MEGAMLA_F32});
  p.inv_freq = call.tensor("inv_freq", inv_freq, {MEGAMLA_F64});
  call.run(megamla_rope_table, p);
}

}  // namespace
}  // namespace megamla::python

TVM_FFI_DLL_EXPORT_TYPED_FUNC(block_scaled_linear, megamla::python::block_scaled_linear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(output_cast, megamla::python::output_cast);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(permute_weights, megamla::python::permute_weights);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, megamla::python::rms_norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rope_table, megamla::python::rope_table);
