// decode_attention and prefill_attention. Arguments in the order of the C structs; megamla/ops/attention.py names them.
#include "call.hpp"

namespace megamla::python {
namespace {

// What both ops take of the query and of the outputs.
struct Query {
  DLTensor* q;
  int64_t q_layout;
  bool q_norm;
  double q_norm_eps;
  double softmax_scale;
  MaybeTensor positions;
  MaybeTensor cos_sin;
};

struct Outputs {
  MaybeTensor attn_sink;
  int64_t live_heads;
  int64_t output;
  DLTensor* out;
  MaybeTensor out_scale;
  MaybeTensor lse;
};

template <typename Params>
void set_query(Call& call, Params& p, const Query& query) {
  p.q = call.rows("q", query.q, {MEGAMLA_BF16}, 3);
  p.q_layout = static_cast<int32_t>(query.q_layout);
  p.q_norm = query.q_norm ? 1 : 0;
  p.q_norm_eps = static_cast<float>(query.q_norm_eps);
  p.softmax_scale = static_cast<float>(query.softmax_scale);
  p.positions = call.tensor("positions", query.positions, {MEGAMLA_I32, MEGAMLA_I64});
  p.cos_sin = call.tensor("cos_sin", query.cos_sin, {MEGAMLA_F32});
}

// [T, H], or one token a request and [T, H, 1]: heads come in eights, so a last dimension of 1 holds none.
megamla_tensor lse_of(Call& call, const MaybeTensor& lse) {
  if (!lse.has_value() || (*lse)->ndim != 3 || (*lse)->shape[2] != 1) return call.rows("lse", lse, {MEGAMLA_F32}, 2);
  megamla_tensor view = call.tensor("lse", lse, {MEGAMLA_F32});
  view.ndim = 2;
  view.shape[2] = 0;
  view.stride[2] = 0;
  return view;
}

template <typename Params>
void set_outputs(Call& call, Params& p, const Outputs& outputs) {
  const megamla_dtype out_dtype = outputs.output == MEGAMLA_OUTPUT_BF16  ? MEGAMLA_BF16
                                  : outputs.output == MEGAMLA_OUTPUT_F32 ? MEGAMLA_F32
                                                                         : MEGAMLA_F8_E4M3;
  p.attn_sink = call.tensor("attn_sink", outputs.attn_sink, {MEGAMLA_F32});
  p.live_heads = outputs.live_heads;
  p.output = static_cast<int32_t>(outputs.output);
  p.out = call.rows("out", outputs.out, {out_dtype}, 3);
  p.out_scale = call.tensor("out_scale", outputs.out_scale, {MEGAMLA_I32});
  p.lse = lse_of(call, outputs.lse);
}

megamla_limits limits_of(const megamla_tensor& q, const megamla_tensor& window_slots, const megamla_tensor& keys) {
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = q.shape[0];
  limits.heads = q.shape[1];
  limits.window_width = window_slots.shape[1];
  limits.compressed_width = keys.shape[1];
  return limits;
}

void decode_attention(DLTensor* q, int64_t q_layout, bool q_norm, double q_norm_eps, double softmax_scale,
                      MaybeTensor positions, MaybeTensor cos_sin, DLTensor* window, int64_t window_layout,
                      DLTensor* window_slots, MaybeTensor window_lens, MaybeTensor compressed,
                      int64_t compressed_layout, MaybeTensor compressed_slots, MaybeTensor compressed_lens,
                      MaybeTensor attn_sink, int64_t live_heads, int64_t output, bool batch_invariant, DLTensor* out,
                      MaybeTensor out_scale, MaybeTensor lse, int64_t device, int64_t num_threads,
                      MaybeTensor workspace) {
  Call call("decode_attention", {device, num_threads, workspace});
  megamla_decode_attention_params p;
  megamla_decode_attention_init(&p);
  set_query(call, p, {q, q_layout, q_norm, q_norm_eps, softmax_scale, positions, cos_sin});
  p.window = call.cache("window", window, window_layout);
  p.window_slots = call.rows("window_slots", window_slots, {MEGAMLA_I32}, 2);
  p.window_lens = call.tensor("window_lens", window_lens, {MEGAMLA_I32});
  p.compressed = call.cache("compressed", compressed, compressed_layout);
  p.compressed_slots = call.rows("compressed_slots", compressed_slots, {MEGAMLA_I32}, 2);
  p.compressed_lens = call.tensor("compressed_lens", compressed_lens, {MEGAMLA_I32});
  p.batch_invariant = batch_invariant ? 1 : 0;
  set_outputs(call, p, {attn_sink, live_heads, output, out, out_scale, lse});
  call.run(megamla_decode_attention, p, megamla_decode_attention_workspace_size,
           limits_of(p.q, p.window_slots, p.compressed_slots));
}

void prefill_attention(DLTensor* q, int64_t q_layout, bool q_norm, double q_norm_eps, double softmax_scale,
                       MaybeTensor positions, MaybeTensor cos_sin, DLTensor* kv, DLTensor* indices,
                       MaybeTensor topk_length, MaybeTensor attn_sink, int64_t live_heads, int64_t output,
                       DLTensor* out, MaybeTensor out_scale, MaybeTensor lse, MaybeTensor max_logits, int64_t device,
                       int64_t num_threads, MaybeTensor workspace) {
  Call call("prefill_attention", {device, num_threads, workspace});
  megamla_prefill_attention_params p;
  megamla_prefill_attention_init(&p);
  set_query(call, p, {q, q_layout, q_norm, q_norm_eps, softmax_scale, positions, cos_sin});
  p.kv = call.rows("kv", kv, {MEGAMLA_BF16}, 2);
  p.indices = call.rows("indices", indices, {MEGAMLA_I32}, 2);
  p.topk_length = call.tensor("topk_length", topk_length, {MEGAMLA_I32});
  set_outputs(call, p, {attn_sink, live_heads, output, out, out_scale, lse});
  p.max_logits = call.rows("max_logits", max_logits, {MEGAMLA_F32}, 2);
  call.run(megamla_prefill_attention, p, megamla_prefill_attention_workspace_size, limits_of(p.q, {}, p.indices));
}

}  // namespace
}  // namespace megamla::python

TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_attention, megamla::python::decode_attention);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill_attention, megamla::python::prefill_attention);
