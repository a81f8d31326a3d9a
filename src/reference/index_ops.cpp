#include "reference/index_ops.hpp"

#include "plan/index_rows.hpp"

namespace megamla::reference {

Status topk_to_slots(const megamla_topk_to_slots_params& p, const megamla_exec&) {
  for (int64_t token = 0; token < p.topk.shape[0]; ++token) plan::topk_to_slots_row(p, token);
  return {};
}

Status combine_topk_swa(const megamla_combine_topk_swa_params& p, const megamla_exec&) {
  for (int64_t row = 0; row < p.indices.shape[0]; ++row) plan::combine_topk_swa_row(p, row);
  return {};
}

Status swa_metadata(const megamla_swa_metadata_params& p, const megamla_exec&) {
  for (int64_t token = 0; token < plan::swa_metadata_tokens(p); ++token) plan::swa_metadata_token(p, token);
  for (int64_t i = 0; i < p.prefill_gather_lens.shape[0]; ++i) plan::swa_metadata_prefill(p, i);
  return {};
}

}  // namespace megamla::reference
