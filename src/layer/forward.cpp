// The data flow of contract section 12, around the attention segments.
#include <algorithm>
#include <cstring>
#include <limits>

#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "layer/run.hpp"
#include "layer/variants.hpp"
#include "megamla/block_scaled_linear.h"
#include "megamla/kv_compress.h"
#include "megamla/kv_insert.h"
#include "megamla/rms_norm.h"

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

void zero_rows(const megamla_tensor& t, int64_t begin) {
  const auto width = static_cast<size_t>(t.shape[1] * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype)));
  for (int64_t row = begin; row < t.shape[0]; ++row) {
    const megamla_tensor one = slice(t, row, row + 1);
    std::memset(one.data, 0, width);
  }
}

// Contiguous copy of `rows` rows into a tap.
void copy_tap(const megamla_tensor& from, const megamla_tensor& tap, int64_t rows) {
  if (!present(tap) || rows == 0) return;
  const int64_t row_bytes = from.stride[0] * megamla_dtype_size(static_cast<megamla_dtype>(from.dtype));
  std::memcpy(tap.data, from.data, static_cast<size_t>(rows * row_bytes));
}

void copy_pair_tap(const StepViews& views, const megamla_layer_taps& taps, int64_t rows) {
  if (!present(taps.pair)) return;
  copy_tap(views.pair, taps.pair, rows);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t g = 0; g < views.pair.shape[1]; ++g) {
      for (int64_t w = 0; w < format::kGroupScaleWords; ++w) {
        at<int32_t>(taps.pair_scale, t, g, w) = at<const int32_t>(views.pair_scale, t, g, w);
      }
    }
  }
}

}  // namespace

MegaAttentionLayer::MegaAttentionLayer(const megamla_layer_config& config, megamla_device device)
    : config_(config),
      device_(device),
      heads_(config.num_heads / config.tp_size),
      groups_(config.o_groups / config.tp_size),
      loader_(config) {}

Status MegaAttentionLayer::workspace_size(megamla_device device, int64_t num_threads, int64_t* bytes) const {
  int64_t op_bytes = 0;
  MEGAMLA_RETURN_IF_ERROR(op_workspace_size(config_, device, num_threads, config_.max_num_batched_tokens, &op_bytes));
  *bytes = head_bytes(config_, config_.max_num_batched_tokens, config_.max_num_requests, op_bytes) +
           format::round_up(max_gathered_rows(config_) * 2 * format::kHeadDim, kWorkspaceAlignment);
  return {};
}

Status MegaAttentionLayer::forward(const megamla_forward_params& params, const megamla_exec& exec) const {
  MEGAMLA_RETURN_IF_ERROR(is_supported(config_, static_cast<megamla_device>(exec.device)));
  MEGAMLA_RETURN_IF_ERROR(check_forward(config_, params));
  if (params.metadata == nullptr) return warm_up(params, exec);
  MEGAMLA_RETURN_IF_ERROR(loader_.check_complete());
  Run run{params, *params.metadata, exec, *params.workspace, {}, {}};
  MEGAMLA_RETURN_IF_ERROR(plan_step(config_, params, &run.step));
  int64_t op_bytes = 0;
  const Step& step = run.step;
  MEGAMLA_RETURN_IF_ERROR(
      op_workspace_size(config_, static_cast<megamla_device>(exec.device), exec.num_threads, step.tokens, &op_bytes));
  int64_t gathered_rows = 0;
  for (const PrefillChunk& chunk : step.chunks) {
    if (chunk.gathered) gathered_rows = std::max(gathered_rows, (chunk.rows.end - chunk.rows.start) * chunk.rows.m);
  }
  MEGAMLA_RETURN_IF_ERROR(
      lay_out(config_, step.tokens, step.requests, op_bytes, gathered_rows, run.workspace, &run.views));
  run.exec.workspace = run.views.op_workspace;
  run.exec.workspace_bytes = run.views.op_workspace_bytes;

  MEGAMLA_RETURN_IF_ERROR(project_in(run));
  if (params.skip_cache_writes == 0) MEGAMLA_RETURN_IF_ERROR(write_caches(run));
  MEGAMLA_RETURN_IF_ERROR(list_keys(run));
  MEGAMLA_RETURN_IF_ERROR(prefill_segment(run));
  MEGAMLA_RETURN_IF_ERROR(decode_segment(run, 0, step.split.num_decode_tokens));
  MEGAMLA_RETURN_IF_ERROR(project_out(run));
  fill_padding(run);
  return {};
}

Status MegaAttentionLayer::warm_up(const megamla_forward_params& params, const megamla_exec& exec) const {
  int64_t bytes = 0;
  const auto device = static_cast<megamla_device>(exec.device);
  MEGAMLA_RETURN_IF_ERROR(workspace_size(device, exec.num_threads, &bytes));
  MEGAMLA_RETURN_IF_ERROR(params.workspace->reserve(bytes));
  StepViews views;
  int64_t op_bytes = 0;
  MEGAMLA_RETURN_IF_ERROR(op_workspace_size(config_, device, exec.num_threads, params.x.shape[0], &op_bytes));
  MEGAMLA_RETURN_IF_ERROR(lay_out(config_, params.x.shape[0], 0, op_bytes, 0, *params.workspace, &views));
  const int64_t pair_bytes = views.pair.shape[0] * groups_ * format::kGroupWidth;
  if (pair_bytes > 0) std::memset(views.pair.data, 0, static_cast<size_t>(pair_bytes));
  const int64_t scale_words = groups_ * format::kGroupScaleWords * format::round_up(views.pair.shape[0], 4);
  if (scale_words > 0) std::memset(views.pair_scale.data, 0, static_cast<size_t>(scale_words) * sizeof(int32_t));
  zero_rows(params.y, 0);
  megamla_exec op_exec = exec;
  op_exec.workspace = views.op_workspace;
  op_exec.workspace_bytes = views.op_workspace_bytes;
  return register_variants(config_, op_exec);
}

Status MegaAttentionLayer::project_in(Run& run) const {
  const Weights& w = loader_.weights();
  const StepViews& v = run.views;
  const megamla_tensor x = run.real(run.params.x);
  const megamla_tensor qr_c = run.real(v.qr_c);
  MEGAMLA_RETURN_IF_ERROR(linear(config_, with_group(x), w.wqa_wkv, &w.wqa_wkv_scale, MEGAMLA_LINEAR_WEIGHT_BLOCK_32,
                                 with_group(qr_c), run.exec));
  MEGAMLA_RETURN_IF_ERROR(
      rms_norm(columns(qr_c, 0, config_.q_lora_rank), w.q_norm, config_.rms_norm_eps, run.real(v.qr), run.exec));
  MEGAMLA_RETURN_IF_ERROR(rms_norm(columns(qr_c, config_.q_lora_rank, config_.head_dim), w.kv_norm,
                                   config_.rms_norm_eps, run.real(v.latent), run.exec));
  // wq_b's rows are in chunked order, so its outputs are chunked queries.
  MEGAMLA_RETURN_IF_ERROR(linear(config_, with_group(run.real(v.qr)), w.wq_b, &w.wq_b_scale,
                                 MEGAMLA_LINEAR_WEIGHT_ROW_32, with_group(flatten(run.real(v.q))), run.exec));
  if (run.taps() != nullptr) {
    copy_tap(v.qr, run.taps()->qr, run.step.real_tokens);
    copy_tap(v.latent, run.taps()->latent, run.step.real_tokens);
    copy_tap(v.q, run.taps()->q, run.step.real_tokens);
  }
  return {};
}

Status MegaAttentionLayer::write_caches(Run& run) const {
  const StepViews& v = run.views;
  const megamla_step_metadata& m = run.metadata;
  megamla_kv_insert_params insert;
  megamla_kv_insert_init(&insert);
  insert.latent = run.real(v.latent);
  insert.positions = run.real(m.positions);
  insert.cos_sin = run.params.cos_sin;
  insert.slot_mapping = run.real(m.slot_mapping);
  insert.cache = run.params.window;
  insert.writer = MEGAMLA_WRITER_WINDOW;
  MEGAMLA_RETURN_IF_ERROR(call(megamla_kv_insert(&insert, &run.exec)));
  if (role_of(config_) != MEGAMLA_ROLE_KV_SOURCE) return {};

  const Weights& w = loader_.weights();
  const megamla_tensor scores = run.real(v.kv_score);
  MEGAMLA_RETURN_IF_ERROR(linear(config_, with_group(run.real(run.params.x)), w.compressor, nullptr,
                                 MEGAMLA_LINEAR_WEIGHT_BF16, with_group(scores), run.exec));
  megamla_kv_compress_params compress;
  megamla_kv_compress_init(&compress);
  compress.compress_ratio = static_cast<int32_t>(config_.compress_ratio);
  compress.eps = config_.rms_norm_eps;
  compress.kv_score = scores;
  compress.weight = w.compressor_norm.view();
  if (config_.compress_ratio == 2) {
    for (int64_t r = 0; r < run.step.requests; ++r) {
      for (int64_t t = at<const int32_t>(m.query_start_loc, r); t < at<const int32_t>(m.query_start_loc, r + 1); ++t) {
        at<int32_t>(v.token_to_req, t) = static_cast<int32_t>(r);
      }
    }
    compress.token_to_req = run.real(v.token_to_req);
    compress.positions = run.real(m.positions);
    compress.state_block = m.state_block;
    compress.state = run.params.compressor_state;
  }
  compress.latent = run.real(v.compressed_latent);
  MEGAMLA_RETURN_IF_ERROR(call(megamla_kv_compress(&compress, &run.exec)));

  insert.latent = run.real(v.compressed_latent);
  insert.slot_mapping = run.real(m.compressed_slot_mapping);
  insert.cache = run.params.compressed;
  insert.writer = MEGAMLA_WRITER_COMPRESSED;
  insert.compress_ratio = static_cast<int32_t>(config_.compress_ratio);
  if (run.taps() != nullptr) copy_tap(v.compressed_latent, run.taps()->compressed_latent, run.step.real_tokens);
  return call(megamla_kv_insert(&insert, &run.exec));
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
  b.output = run.params.y.dtype == MEGAMLA_F32 ? MEGAMLA_LINEAR_OUT_F32 : MEGAMLA_LINEAR_OUT_BF16;
  b.y = run.real(run.params.y);
  MEGAMLA_RETURN_IF_ERROR(call(megamla_block_scaled_linear(&b, &run.exec)));
  if (run.taps() != nullptr) {
    copy_pair_tap(v, *run.taps(), run.step.real_tokens);
    if (present(run.taps()->z)) copy_tap(v.z, run.taps()->z, run.step.real_tokens);
  }
  return {};
}

// Rows after the last request: y is 0 and no key is valid.
void MegaAttentionLayer::fill_padding(Run& run) const {
  zero_rows(run.params.y, run.step.real_tokens);
  if (run.taps() == nullptr || !present(run.taps()->lse)) return;
  for (int64_t t = run.step.real_tokens; t < run.step.tokens; ++t) {
    for (int64_t h = 0; h < heads_; ++h) at<float>(run.taps()->lse, t, h) = std::numeric_limits<float>::infinity();
  }
}

}  // namespace megamla::layer
