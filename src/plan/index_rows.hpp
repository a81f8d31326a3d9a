// One row of each index transform (contract section 8) on host tensors that validation has accepted. Integer
// arithmetic, so the reference and the CPU share it and differ in who walks the rows.
#pragma once

#include "megamla/index_ops.h"

namespace megamla::plan {

void topk_to_slots_row(const megamla_topk_to_slots_params& params, int64_t token);

void combine_topk_swa_row(const megamla_combine_topk_swa_params& params, int64_t row);

// Everything that is indexed by token; tokens up to swa_metadata_tokens.
void swa_metadata_token(const megamla_swa_metadata_params& params, int64_t token);
int64_t swa_metadata_tokens(const megamla_swa_metadata_params& params);
// prefill_gather_lens, by prefill request.
void swa_metadata_prefill(const megamla_swa_metadata_params& params, int64_t prefill);

}  // namespace megamla::plan
