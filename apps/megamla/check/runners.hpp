// The runners of the golden ops, one family per file. registry.cpp maps a file's `op` to one of them.
#pragma once

#include "check/case.hpp"

namespace megamla::check {

// attention_case.cpp
void run_decode(Run& run);  // decode and decode_slice
void run_prefill(Run& run);
// kv_case.cpp
void run_kv_encode(Run& run);
void run_kv_decode(Run& run);
void run_kv_insert(Run& run);
void run_gather(Run& run);
// compress_case.cpp
void run_compress(Run& run);
// weights_case.cpp
void run_rope_tables(Run& run);
void run_permute_q(Run& run);
void run_pad_q(Run& run);
void run_permute_o(Run& run);
void run_permute_wq_b(Run& run);
void run_permute_wo_a(Run& run);
// index_case.cpp
void run_swa_metadata(Run& run);
void run_global_topk(Run& run);
void run_combine_topk_swa(Run& run);
// plan_case.cpp
void run_prefill_chunk_plan(Run& run);
void run_split_batch(Run& run);
void run_compressed_slot_mapping(Run& run);
// cast_case.cpp
void run_cast(Run& run);
void run_mxfp8_quant(Run& run);
// o_proj_case.cpp
void run_o_proj(Run& run);
// layer_case.cpp
void run_layer(Run& run);

}  // namespace megamla::check
