// The description of each op, found by its parameter struct: all of its implementations, for who runs one of their own
// choice (tests, measurements).
#pragma once

#include "megamla/megamla.h"

namespace megamla::ops {

template <class Params>
struct Op;

const Op<megamla_block_scaled_linear_params>& op_of(const megamla_block_scaled_linear_params*);
const Op<megamla_combine_topk_swa_params>& op_of(const megamla_combine_topk_swa_params*);
const Op<megamla_decode_attention_params>& op_of(const megamla_decode_attention_params*);
const Op<megamla_kv_compress_params>& op_of(const megamla_kv_compress_params*);
const Op<megamla_kv_gather_params>& op_of(const megamla_kv_gather_params*);
const Op<megamla_kv_insert_params>& op_of(const megamla_kv_insert_params*);
const Op<megamla_output_cast_params>& op_of(const megamla_output_cast_params*);
const Op<megamla_permute_weights_params>& op_of(const megamla_permute_weights_params*);
const Op<megamla_prefill_attention_params>& op_of(const megamla_prefill_attention_params*);
const Op<megamla_rms_norm_params>& op_of(const megamla_rms_norm_params*);
const Op<megamla_rope_table_params>& op_of(const megamla_rope_table_params*);
const Op<megamla_swa_metadata_params>& op_of(const megamla_swa_metadata_params*);
const Op<megamla_topk_to_slots_params>& op_of(const megamla_topk_to_slots_params*);

}  // namespace megamla::ops
