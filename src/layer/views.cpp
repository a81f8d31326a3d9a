#include <algorithm>
#include <array>

#include "format/chunked.hpp"
#include "layer/call.hpp"
#include "layer/step.hpp"
#include "megamla/block_scaled_linear.h"
#include "megamla/decode_attention.h"
#include "megamla/kv_compress.h"
#include "megamla/prefill_attention.h"

namespace megamla::layer {
namespace {

constexpr int64_t kRowBytes = 1024;  // a gathered bf16 row of 512

int64_t tensor_bytes(const megamla_tensor& t) {
  int64_t bytes = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  for (int d = 0; d < t.ndim; ++d) bytes *= t.shape[d];
  return bytes;
}

// Every view of the head in order, with its shape: the one list that sizes and placement come from.
template <class Visit>
void for_each_view(const megamla_layer_config& c, int64_t t, int64_t r, StepViews& v, Visit&& visit) {
  const int64_t heads = c.num_heads / c.tp_size;
  const int64_t groups = c.o_groups / c.tp_size;
  const int64_t topk = c.compress_ratio > 0 ? c.index_topk : 0;
  const int64_t sources = c.compress_ratio > 0 && c.kv_source_layer == c.layer_id ? t : 0;
  const int64_t padded_tokens = format::round_up(t, 4);
  visit(v.qr_c, MEGAMLA_BF16, {t, c.q_lora_rank + c.head_dim});
  visit(v.qr, MEGAMLA_BF16, {t, c.q_lora_rank});
  visit(v.latent, MEGAMLA_BF16, {t, c.head_dim});
  visit(v.q, MEGAMLA_BF16, {t, heads, c.head_dim});
  visit(v.kv_score, MEGAMLA_F32, {sources, c.head_dim * std::max<int64_t>(c.compress_ratio, 1)});
  visit(v.compressed_latent, MEGAMLA_BF16, {sources, c.head_dim});
  visit(v.pair, MEGAMLA_F8_E4M3, {t, groups, format::kGroupWidth});
  visit(v.pair_scale, MEGAMLA_I32, {groups, format::kGroupScaleWords, padded_tokens});
  if (c.quantize_z != 0) {
    visit(v.z, MEGAMLA_F8_E4M3, {t, groups * c.o_lora_rank});
    visit(v.z_scale, MEGAMLA_F8_E8M0, {format::f8_128x4_size(t, groups * c.o_lora_rank / 32)});
  } else {
    visit(v.z, MEGAMLA_BF16, {t, groups, c.o_lora_rank});
  }
  visit(v.window_slots, MEGAMLA_I32, {t, c.window});
  visit(v.window_lens, MEGAMLA_I32, {t});
  visit(v.is_valid, MEGAMLA_U8, {t});
  visit(v.token_to_req, MEGAMLA_I32, {t});
  visit(v.gather_lens, MEGAMLA_I32, {r});
  visit(v.compressed_lens_of_requests, MEGAMLA_I32, {r});
  visit(v.topk, MEGAMLA_I32, {t, topk});
  visit(v.compressed_slots, MEGAMLA_I32, {t, topk});
  visit(v.compressed_lens, MEGAMLA_I32, {t});
  visit(v.combined, MEGAMLA_I32, {t, format::round_up(topk + c.window, 128)});
  visit(v.combined_lens, MEGAMLA_I32, {t});
  visit(v.y_part, MEGAMLA_BF16, {c.tp_size > 1 ? t : 0, c.hidden_size});
}

}  // namespace

int64_t head_bytes(const megamla_layer_config& config, int64_t tokens, int64_t requests, int64_t op_workspace_bytes) {
  StepViews views;
  int64_t total = format::round_up(op_workspace_bytes, kWorkspaceAlignment);
  for_each_view(config, tokens, requests, views,
                [&](megamla_tensor&, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
                  total += format::round_up(tensor_bytes(host_tensor(nullptr, dtype, shape)), kWorkspaceAlignment);
                });
  return total;
}

Status lay_out(const megamla_layer_config& config, const StepSize& size, int32_t cuda_device, Workspace& workspace,
               StepViews* views) {
  std::vector<megamla_tensor*> tensors;
  std::vector<int64_t> bytes{size.op_workspace_bytes};
  for_each_view(config, size.tokens, size.requests, *views,
                [&](megamla_tensor& view, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
                  view = host_tensor(nullptr, dtype, shape);
                  view.cuda_device = cuda_device;
                  tensors.push_back(&view);
                  bytes.push_back(tensor_bytes(view));
                });
  MEGAMLA_RETURN_IF_ERROR(workspace.reserve(head_bytes(config, size.tokens, size.requests, size.op_workspace_bytes) +
                                            size.gathered_rows * kRowBytes));
  std::vector<void*> pointers(bytes.size());
  MEGAMLA_RETURN_IF_ERROR(workspace.head(bytes, pointers));
  views->op_workspace = pointers[0];
  views->op_workspace_bytes = size.op_workspace_bytes;
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i]->data = pointers[i + 1];
  // Stored [G, 32, A]; seen as [T, G, 32] with strides (1, 32 A, A).
  megamla_tensor& scale = views->pair_scale;
  const int64_t a = scale.shape[2];
  const int64_t groups = scale.shape[0];
  const int64_t shape[3] = {size.tokens, groups, format::kGroupScaleWords};
  const int64_t stride[3] = {1, format::kGroupScaleWords * a, a};
  std::copy_n(shape, 3, scale.shape);
  std::copy_n(stride, 3, scale.stride);
  return {};
}

Status has_gathered_prefill(megamla_device device) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  int64_t bytes = 0;
  return call(megamla_prefill_attention_workspace_size(&limits, device, &bytes));
}

bool may_gather(const megamla_layer_config& c, megamla_device device) {
  return c.prefill_path != MEGAMLA_PREFILL_PAGED && c.batch_invariant == 0 && has_gathered_prefill(device).ok();
}

int64_t max_gathered_rows(const megamla_layer_config& c, megamla_device device) {
  if (!may_gather(c, device)) return 0;
  const int64_t compressed = c.compress_ratio > 0 ? (c.max_model_len + c.compress_ratio - 1) / c.compress_ratio : 0;
  const int64_t per_request = compressed + c.window + c.max_num_batched_tokens;
  return per_request * std::min(c.prefill_chunk_size, c.max_num_requests);
}

Status op_workspace_size(const megamla_layer_config& c, megamla_device device, int64_t num_threads, int64_t tokens,
                         int64_t* bytes) {
  const int64_t heads = c.num_heads / c.tp_size;
  const int64_t groups = c.o_groups / c.tp_size;
  const int64_t topk = c.compress_ratio > 0 ? c.index_topk : 0;
  *bytes = 0;
  const auto include = [&](auto query, megamla_limits limits) -> Status {
    limits.struct_size = sizeof(limits);
    limits.tokens = tokens;
    limits.num_threads = num_threads;
    int64_t needed = 0;
    MEGAMLA_RETURN_IF_ERROR(call(query(&limits, device, &needed)));
    *bytes = std::max(*bytes, needed);
    return {};
  };
  const auto linear = [&](int64_t g, int64_t in, int64_t out) {
    megamla_limits limits{};
    limits.groups = g;
    limits.in_features = in;
    limits.out_features = out;
    return include(megamla_block_scaled_linear_workspace_size, limits);
  };
  MEGAMLA_RETURN_IF_ERROR(linear(1, c.hidden_size, c.q_lora_rank + c.head_dim));
  MEGAMLA_RETURN_IF_ERROR(linear(1, c.hidden_size, 2 * c.head_dim));
  MEGAMLA_RETURN_IF_ERROR(linear(1, c.q_lora_rank, heads * c.head_dim));
  MEGAMLA_RETURN_IF_ERROR(linear(groups, format::kGroupWidth, c.o_lora_rank));
  MEGAMLA_RETURN_IF_ERROR(linear(1, groups * c.o_lora_rank, c.hidden_size));
  megamla_limits attention{};
  attention.heads = heads;
  attention.window_width = c.window;
  attention.compressed_width = topk;
  MEGAMLA_RETURN_IF_ERROR(include(megamla_decode_attention_workspace_size, attention));
  attention.compressed_width = format::round_up(topk + c.window, 128);
  if (has_gathered_prefill(device).ok())
    MEGAMLA_RETURN_IF_ERROR(include(megamla_prefill_attention_workspace_size, attention));
  MEGAMLA_RETURN_IF_ERROR(include(megamla_kv_compress_workspace_size, megamla_limits{}));
  if (device == MEGAMLA_DEVICE_CUDA) *bytes = 2 * format::round_up(*bytes, kWorkspaceAlignment);
  return {};
}

}  // namespace megamla::layer
