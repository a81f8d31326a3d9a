// Every tensor and cache of an op's parameters, so that a call can be moved to where a device reads it.
#pragma once

#include "megamla/megamla.h"

namespace megamla::ops {

// visit(megamla_tensor&) and visit(megamla_kv_cache&) for each view.
template <class V>
void for_each_view(megamla_block_scaled_linear_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.x, &p.x_scale, &p.weight, &p.weight_scale, &p.y, &p.y_scale}) visit(*t);
}
template <class V>
void for_each_view(megamla_combine_topk_swa_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.topk, &p.query_start_loc, &p.seq_lens, &p.gather_lens, &p.indices, &p.lens}) visit(*t);
}
template <class V>
void for_each_view(megamla_decode_attention_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.q, &p.positions, &p.cos_sin, &p.window_slots, &p.window_lens, &p.compressed_slots,
                            &p.compressed_lens, &p.attn_sink, &p.out, &p.out_scale, &p.lse})
    visit(*t);
  visit(p.window);
  visit(p.compressed);
}
template <class V>
void for_each_view(megamla_kv_compress_params& p, V&& visit) {
  for (megamla_tensor* t :
       {&p.kv_score, &p.weight, &p.token_to_req, &p.positions, &p.state_block, &p.state, &p.latent, &p.written})
    visit(*t);
}
template <class V>
void for_each_view(megamla_kv_gather_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.seq_lens, &p.gather_lens, &p.block_table, &p.out}) visit(*t);
  visit(p.cache);
}
template <class V>
void for_each_view(megamla_kv_insert_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.latent, &p.positions, &p.cos_sin, &p.slot_mapping, &p.skipped_rows}) visit(*t);
  visit(p.cache);
}
template <class V>
void for_each_view(megamla_output_cast_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.in, &p.out, &p.out_scale}) visit(*t);
}
template <class V>
void for_each_view(megamla_permute_weights_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.in, &p.in_scale, &p.out, &p.out_scale, &p.out_scale_packed}) visit(*t);
}
template <class V>
void for_each_view(megamla_prefill_attention_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.q, &p.positions, &p.cos_sin, &p.kv, &p.indices, &p.topk_length, &p.attn_sink, &p.out,
                            &p.out_scale, &p.lse, &p.max_logits})
    visit(*t);
}
template <class V>
void for_each_view(megamla_rms_norm_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.x, &p.weight, &p.y}) visit(*t);
}
template <class V>
void for_each_view(megamla_rope_table_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.positions, &p.cos_sin, &p.inv_freq}) visit(*t);
}
template <class V>
void for_each_view(megamla_swa_metadata_params& p, V&& visit) {
  for (megamla_tensor* t :
       {&p.query_start_loc, &p.seq_lens, &p.slot_mapping, &p.block_table, &p.replay_start, &p.is_valid_token,
        &p.token_to_req, &p.decode_swa_indices, &p.decode_swa_lens, &p.prefill_gather_lens})
    visit(*t);
}
template <class V>
void for_each_view(megamla_topk_to_slots_params& p, V&& visit) {
  for (megamla_tensor* t : {&p.topk, &p.token_to_req, &p.is_valid_token, &p.block_table, &p.slots, &p.lens}) visit(*t);
}

}  // namespace megamla::ops
