#include "cpu/index_ops.hpp"

#include "core/threads.hpp"
#include "plan/index_rows.hpp"

namespace megamla::cpu {
namespace {

template <class Row>
void for_each_row(int64_t rows, const megamla_exec& exec, Row&& row) {
  parallel_ranges(rows, resolve_threads(exec.num_threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) row(i);
  });
}

}  // namespace

Status topk_to_slots(const megamla_topk_to_slots_params& p, const megamla_exec& exec) {
  for_each_row(p.topk.shape[0], exec, [&](int64_t token) { plan::topk_to_slots_row(p, token); });
  return {};
}

Status combine_topk_swa(const megamla_combine_topk_swa_params& p, const megamla_exec& exec) {
  for_each_row(p.indices.shape[0], exec, [&](int64_t row) { plan::combine_topk_swa_row(p, row); });
  return {};
}

Status swa_metadata(const megamla_swa_metadata_params& p, const megamla_exec& exec) {
  for_each_row(plan::swa_metadata_tokens(p), exec, [&](int64_t token) { plan::swa_metadata_token(p, token); });
  for_each_row(p.prefill_gather_lens.shape[0], exec, [&](int64_t i) { plan::swa_metadata_prefill(p, i); });
  return {};
}

}  // namespace megamla::cpu
