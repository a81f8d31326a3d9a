#include "core/attention_view.hpp"

namespace megamla {
namespace {

template <class Params>
AttentionView common_view(const Params& p) {
  AttentionView view{};
  view.q = p.q;
  view.q_layout = static_cast<megamla_q_layout>(p.q_layout);
  view.q_norm = p.q_norm != 0;
  view.q_norm_eps = p.q_norm_eps;
  view.softmax_scale = p.softmax_scale;
  view.positions = p.positions;
  view.cos_sin = p.cos_sin;
  view.attn_sink = p.attn_sink;
  view.live_heads = p.live_heads == 0 ? p.q.shape[1] : p.live_heads;
  view.output = static_cast<megamla_attention_output>(p.output);
  view.out = p.out;
  view.out_scale = p.out_scale;
  view.lse = p.lse;
  return view;
}

}  // namespace

AttentionView view_of(const megamla_decode_attention_params& p) {
  AttentionView view = common_view(p);
  view.sources[view.num_sources++] = {p.window_slots, p.window_lens, p.window, {}};
  if (present(p.compressed)) {
    view.sources[view.num_sources++] = {p.compressed_slots, p.compressed_lens, p.compressed, {}};
  }
  return view;
}

AttentionView view_of(const megamla_prefill_attention_params& p) {
  AttentionView view = common_view(p);
  view.sources[view.num_sources++] = {p.indices, p.topk_length, {}, p.kv};
  view.max_logits = p.max_logits;
  return view;
}

}  // namespace megamla
