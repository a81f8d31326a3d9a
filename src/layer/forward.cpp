// The data flow of contract section 12, around the attention segments.
#include <algorithm>
#include <limits>

#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "layer/config.hpp"
#include "layer/run.hpp"
#include "layer/variants.hpp"
#include "megamla/block_scaled_linear.h"
#include "megamla/kv_compress.h"
#include "megamla/kv_insert.h"
#include "megamla/rms_norm.h"
#include "ops/communicator.hpp"
#include "ops/memory.hpp"
#include "ops/op.hpp"
#include "ops/step_lists.hpp"

namespace megamla::layer {
namespace {

// Columns begin .. begin+count-1 of a [T, n] tensor.
megamla_tensor columns(megamla_tensor t, int64_t begin, int64_t count) {
  t.data = static_cast<char*>(t.data) + begin * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  t.shape[1] = count;
  return t;
}

// [T, a, b] contiguous in its last two dimensions -> [T, a * b].
megamla_tensor flatten(megamla_tensor t) {
  t.shape[1] *= t.shape[2];
  t.stride[1] = 1;
  t.ndim = 2;
  return t;
}

// [T, a] -> [T, 1, a].
megamla_tensor with_group(megamla_tensor t) {
  t.shape[2] = t.shape[1];
  t.stride[2] = t.stride[1];
  t.shape[1] = 1;
  t.stride[1] = t.shape[2];
  t.ndim = 3;
  return t;
}

Status rms_norm(const megamla_tensor& x, const Buffer& weight, float eps, const megamla_tensor& y,
                const megamla_exec& exec) {
  megamla_rms_norm_params p;
  megamla_rms_norm_init(&p);
  p.eps = eps;
  p.x = x;
  p.weight = weight.view();
  p.y = y;
  return call(megamla_rms_norm(&p, &exec));
}

Status linear(const megamla_layer_config& config, const megamla_tensor& x, const Buffer& weight, const Buffer* scale,
              megamla_linear_weight kind, const megamla_tensor& y, const megamla_exec& exec) {
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  p.batch_invariant = config.batch_invariant;
  p.x = x;
  p.weight_kind = kind;
  p.weight = weight.view();
  if (scale != nullptr) p.weight_scale = scale->view();
  p.output = y.dtype == MEGAMLA_F32 ? MEGAMLA_LINEAR_OUT_F32 : MEGAMLA_LINEAR_OUT_BF16;
  p.y = y;
  return call(megamla_block_scaled_linear(&p, &exec));
}

// The first `rows` rows into a tap.
Status copy_tap(const megamla_tensor& from, const megamla_tensor& tap, int64_t rows, const megamla_exec& exec) {
  return present(tap) ? ops::copy_rows(slice(from, 0, rows), slice(tap, 0, rows), exec) : Status();
}

// Scale words of tokens 0 .. tokens-1: a row per group and word, since a word's tokens lie side by side.
megamla_tensor scale_rows(const megamla_tensor& scale, int64_t tokens) {
  megamla_tensor t = scale;
  t.ndim = 2;
  t.shape[0] = scale.shape[1] * scale.shape[2];
  t.shape[1] = tokens;
  t.stride[0] = scale.stride[2];
  t.stride[1] = 1;
  return t;
}

Status copy_pair_tap(const StepViews& views, const megamla_layer_taps& taps, int64_t rows, const megamla_exec& exec) {
  if (!present(taps.pair)) return {};
  MEGAMLA_RETURN_IF_ERROR(copy_tap(views.pair, taps.pair, rows, exec));
  return ops::copy_rows(scale_rows(views.pair_scale, rows), scale_rows(taps.pair_scale, rows), exec);
}

}  // namespace

MegaAttentionLayer::MegaAttentionLayer(const megamla_layer_config& config, megamla_device device)
    : config_(config),
      cuda_device_(device == MEGAMLA_DEVICE_CUDA ? config.cuda_device : -1),
      heads_(config.num_heads / config.tp_size),
      groups_(config.o_groups / config.tp_size),
      loader_(config, cuda_device_) {}

Status MegaAttentionLayer::workspace_size(megamla_device device, int64_t num_threads, int64_t* bytes) const {
  const int64_t tokens = config_.max_num_batched_tokens;
  megamla_device resolved{};
  MEGAMLA_RETURN_IF_ERROR(ops::resolve_device(device, cuda_device_, &resolved));
  int64_t op_bytes = 0;
  MEGAMLA_RETURN_IF_ERROR(op_workspace_size(config_, resolved, num_threads, tokens, &op_bytes));
  *bytes = head_bytes(config_, tokens, config_.max_num_requests, op_bytes) +
           format::round_up(max_gathered_rows(config_, resolved) * 2 * format::kHeadDim, kWorkspaceAlignment);
  return {};
}

Status MegaAttentionLayer::device_of(const megamla_forward_params& params, const megamla_exec& exec,
                                     megamla_device* device) const {
  MEGAMLA_RETURN_IF_ERROR(ops::resolve_device(static_cast<megamla_device>(exec.device), params.x.cuda_device, device));
  if ((*device == MEGAMLA_DEVICE_CUDA) != (cuda_device_ >= 0)) {
    return invalid_argument("forward: device: expected {} (where the layer's weights are), got {}",
                            cuda_device_ >= 0 ? "cuda" : "reference or cpu", ops::device_name(*device));
  }
  return is_supported(config_, *device);
}

Status MegaAttentionLayer::forward(const megamla_forward_params& params, const megamla_exec& exec) const {
  megamla_device device{};
  MEGAMLA_RETURN_IF_ERROR(device_of(params, exec, &device));
  MEGAMLA_RETURN_IF_ERROR(check_forward(config_, params, cuda_device_));
  megamla_exec resolved = exec;
  resolved.device = device;
  if (params.metadata == nullptr) return warm_up(params, resolved);
  MEGAMLA_RETURN_IF_ERROR(loader_.check_complete());
  Run run{params, *params.metadata, resolved, resolved, *params.workspace, {}, {}};
  MEGAMLA_RETURN_IF_ERROR(plan_step(config_, params, device, &run.step));
  const Step& step = run.step;
  StepSize size{step.tokens, step.requests, 0, 0};
  MEGAMLA_RETURN_IF_ERROR(op_workspace_size(config_, device, exec.num_threads, step.tokens, &size.op_workspace_bytes));
  for (const PrefillChunk& chunk : step.chunks) {
    if (chunk.gathered)
      size.gathered_rows = std::max(size.gathered_rows, (chunk.rows.end - chunk.rows.start) * chunk.rows.m);
  }
  MEGAMLA_RETURN_IF_ERROR(lay_out(config_, size, cuda_device_, run.workspace, &run.views));
  run.exec.workspace = run.views.op_workspace;
  run.exec.workspace_bytes = run.views.op_workspace_bytes;
  if (device == MEGAMLA_DEVICE_CUDA) run.exec.workspace_bytes /= 2;
  run.side = run.exec;
  if (device == MEGAMLA_DEVICE_CUDA && params.side_stream != nullptr) {
    run.side.stream = params.side_stream;
    run.side.workspace = static_cast<char*>(run.exec.workspace) + run.exec.workspace_bytes;
  }

  // The projections of x fill the GPU and follow each other closely; the side stream's small ops are done before wq_b
  // is.
  MEGAMLA_RETURN_IF_ERROR(project_hidden(run));
  MEGAMLA_RETURN_IF_ERROR(project_compressor(run));
  MEGAMLA_RETURN_IF_ERROR(side_stream_.order(ops::SideStream::kProjected, run.exec, run.side));
  MEGAMLA_RETURN_IF_ERROR(list_keys(run));
  MEGAMLA_RETURN_IF_ERROR(write_compressed(run));
  MEGAMLA_RETURN_IF_ERROR(write_window(run));
  MEGAMLA_RETURN_IF_ERROR(project_query(run));
  MEGAMLA_RETURN_IF_ERROR(side_stream_.order(ops::SideStream::kEnd, run.side, run.exec));
  MEGAMLA_RETURN_IF_ERROR(prefill_segment(run));
  MEGAMLA_RETURN_IF_ERROR(decode_segment(run, 0, step.split.num_decode_tokens));
  MEGAMLA_RETURN_IF_ERROR(project_out(run));
  MEGAMLA_RETURN_IF_ERROR(fill_padding(run));
  return reduce(run);
}

Status MegaAttentionLayer::warm_up(const megamla_forward_params& params, const megamla_exec& exec) const {
  int64_t bytes = 0;
  const auto device = static_cast<megamla_device>(exec.device);
  MEGAMLA_RETURN_IF_ERROR(workspace_size(device, exec.num_threads, &bytes));
  MEGAMLA_RETURN_IF_ERROR(params.workspace->reserve(bytes));
  StepViews views;
  // One token at least, which the kernel variants are tried on.
  StepSize size{std::max<int64_t>(params.x.shape[0], 1), 0, 0, 0};
  MEGAMLA_RETURN_IF_ERROR(op_workspace_size(config_, device, exec.num_threads, size.tokens, &size.op_workspace_bytes));
  MEGAMLA_RETURN_IF_ERROR(lay_out(config_, size, cuda_device_, *params.workspace, &views));
  megamla_exec op_exec = exec;
  op_exec.workspace = views.op_workspace;
  op_exec.workspace_bytes = views.op_workspace_bytes;
  MEGAMLA_RETURN_IF_ERROR(register_variants(config_, views, op_exec));
  MEGAMLA_RETURN_IF_ERROR(ops::clear_rows(views.pair, exec));
  MEGAMLA_RETURN_IF_ERROR(ops::clear_rows(scale_rows(views.pair_scale, format::round_up(size.tokens, 4)), exec));
  return ops::clear_rows(params.y, exec);
}

// [qr | c] = x [wq_a | wkv]^T.
Status MegaAttentionLayer::project_hidden(Run& run) const {
  const Weights& w = loader_.weights();
  return linear(config_, with_group(run.real(run.params.x)), w.wqa_wkv, &w.wqa_wkv_scale,
                MEGAMLA_LINEAR_WEIGHT_BLOCK_32, with_group(run.real(run.views.qr_c)), run.exec);
}

Status MegaAttentionLayer::project_query(Run& run) const {
  const Weights& w = loader_.weights();
  const StepViews& v = run.views;
  MEGAMLA_RETURN_IF_ERROR(rms_norm(columns(run.real(v.qr_c), 0, config_.q_lora_rank), w.q_norm, config_.rms_norm_eps,
                                   run.real(v.qr), run.exec));
  // wq_b's rows are in chunked order, so its outputs are chunked queries.
  MEGAMLA_RETURN_IF_ERROR(linear(config_, with_group(run.real(v.qr)), w.wq_b, &w.wq_b_scale,
                                 MEGAMLA_LINEAR_WEIGHT_ROW_32, with_group(flatten(run.real(v.q))), run.exec));
  if (run.taps() == nullptr) return {};
  MEGAMLA_RETURN_IF_ERROR(copy_tap(v.qr, run.taps()->qr, run.step.real_tokens, run.exec));
  return copy_tap(v.q, run.taps()->q, run.step.real_tokens, run.exec);
}

// The latent into the window cache.
Status MegaAttentionLayer::write_window(Run& run) const {
  const StepViews& v = run.views;
  MEGAMLA_RETURN_IF_ERROR(rms_norm(columns(run.real(v.qr_c), config_.q_lora_rank, config_.head_dim),
                                   loader_.weights().kv_norm, config_.rms_norm_eps, run.real(v.latent), run.side));
  if (run.taps() != nullptr)
    MEGAMLA_RETURN_IF_ERROR(copy_tap(v.latent, run.taps()->latent, run.step.real_tokens, run.side));
  if (run.params.skip_cache_writes != 0) return {};
  megamla_kv_insert_params insert;
  megamla_kv_insert_init(&insert);
  insert.latent = run.real(v.latent);
  insert.positions = run.real(run.metadata.positions);
  insert.cos_sin = run.params.cos_sin;
  insert.slot_mapping = run.real(run.metadata.slot_mapping);
  insert.cache = run.params.window;
  insert.writer = MEGAMLA_WRITER_WINDOW;
  return call(megamla_kv_insert(&insert, &run.side));
}

bool MegaAttentionLayer::writes_compressed(const Run& run) const {
  return role_of(config_) == MEGAMLA_ROLE_KV_SOURCE && run.params.skip_cache_writes == 0;
}

// On a kv source: what the compressor makes latents of.
Status MegaAttentionLayer::project_compressor(Run& run) const {
  if (!writes_compressed(run)) return {};
  return linear(config_, with_group(run.real(run.params.x)), loader_.weights().compressor, nullptr,
                MEGAMLA_LINEAR_WEIGHT_BF16, with_group(run.real(run.views.kv_score)), run.exec);
}

// Its latents into the compressed cache.
Status MegaAttentionLayer::write_compressed(Run& run) const {
  if (!writes_compressed(run)) return {};
  const StepViews& v = run.views;
  const megamla_step_metadata& m = run.metadata;
  megamla_kv_compress_params compress;
  megamla_kv_compress_init(&compress);
  compress.compress_ratio = static_cast<int32_t>(config_.compress_ratio);
  compress.eps = config_.rms_norm_eps;
  compress.kv_score = run.real(v.kv_score);
  compress.weight = loader_.weights().compressor_norm.view();
  if (config_.compress_ratio == 2) {
    compress.token_to_req = run.real(v.token_to_req);
    compress.positions = run.real(m.positions);
    compress.state_block = m.state_block;
    compress.state = run.params.compressor_state;
  }
  compress.latent = run.real(v.compressed_latent);
  MEGAMLA_RETURN_IF_ERROR(call(megamla_kv_compress(&compress, &run.side)));
  if (run.taps() != nullptr) {
    MEGAMLA_RETURN_IF_ERROR(
        copy_tap(v.compressed_latent, run.taps()->compressed_latent, run.step.real_tokens, run.side));
  }

  megamla_kv_insert_params insert;
  megamla_kv_insert_init(&insert);
  insert.latent = run.real(v.compressed_latent);
  insert.positions = run.real(m.positions);
  insert.cos_sin = run.params.cos_sin;
  insert.slot_mapping = run.real(m.compressed_slot_mapping);
  insert.cache = run.params.compressed;
  insert.writer = MEGAMLA_WRITER_COMPRESSED;
  insert.compress_ratio = static_cast<int32_t>(config_.compress_ratio);
  return call(megamla_kv_insert(&insert, &run.side));
}

Status MegaAttentionLayer::project_out(Run& run) const {
  const Weights& w = loader_.weights();
  const StepViews& v = run.views;
  megamla_block_scaled_linear_params a;
  megamla_block_scaled_linear_init(&a);
  a.batch_invariant = config_.batch_invariant;
  a.input = MEGAMLA_LINEAR_IN_FP8_PAIR;
  a.x = run.real(v.pair);
  a.x_scale = run.real(v.pair_scale);
  a.weight_kind = MEGAMLA_LINEAR_WEIGHT_ROW_32;
  a.weight = w.wo_a.view();
  a.weight_scale = w.wo_a_scale.view();
  a.output = config_.quantize_z != 0 ? MEGAMLA_LINEAR_OUT_MXFP8 : MEGAMLA_LINEAR_OUT_BF16;
  a.y = run.real(v.z);
  megamla_tensor z_scale = v.z_scale;
  if (config_.quantize_z != 0) {
    z_scale.shape[0] = format::f8_128x4_size(run.step.real_tokens, groups_ * config_.o_lora_rank / 32);
    a.y_scale = z_scale;
  }
  MEGAMLA_RETURN_IF_ERROR(call(megamla_block_scaled_linear(&a, &run.exec)));

  megamla_block_scaled_linear_params b;
  megamla_block_scaled_linear_init(&b);
  b.batch_invariant = config_.batch_invariant;
  b.input = config_.quantize_z != 0 ? MEGAMLA_LINEAR_IN_MXFP8 : MEGAMLA_LINEAR_IN_BF16;
  b.x = config_.quantize_z != 0 ? run.real(v.z) : flatten(run.real(v.z));
  if (config_.quantize_z != 0) b.x_scale = z_scale;
  b.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
  b.weight = w.wo_b.view();
  b.weight_scale = w.wo_b_scale.view();
  b.output = run.y_part().dtype == MEGAMLA_F32 ? MEGAMLA_LINEAR_OUT_F32 : MEGAMLA_LINEAR_OUT_BF16;
  b.y = run.real(run.y_part());
  MEGAMLA_RETURN_IF_ERROR(call(megamla_block_scaled_linear(&b, &run.exec)));
  if (run.taps() == nullptr) return {};
  MEGAMLA_RETURN_IF_ERROR(copy_pair_tap(v, *run.taps(), run.step.real_tokens, run.exec));
  return copy_tap(v.z, run.taps()->z, run.step.real_tokens, run.exec);
}

// Rows after the last request: y is 0 and no key is valid.
Status MegaAttentionLayer::fill_padding(Run& run) const {
  const Step& step = run.step;
  MEGAMLA_RETURN_IF_ERROR(ops::clear_rows(slice(run.y_part(), step.real_tokens, step.tokens), run.exec));
  if (run.taps() == nullptr || !present(run.taps()->lse)) return {};
  return ops::fill_f32(run.lse_slice(step.real_tokens, step.tokens), std::numeric_limits<float>::infinity(), run.exec);
}

Status MegaAttentionLayer::reduce(Run& run) const {
  const megamla_forward_params& p = run.params;
  if (p.reduce == MEGAMLA_REDUCE_NONE) return {};
  if (p.reduce == MEGAMLA_REDUCE_ALL) return ops::all_reduce(*p.communicator, p.y, run.exec);
  return ops::reduce_scatter(*p.communicator, run.y_part(), p.y, run.exec);
}

}  // namespace megamla::layer
