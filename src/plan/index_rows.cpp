#include "plan/index_rows.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "plan/index_elements.hpp"

namespace megamla::plan {
namespace {

// num_pages 0 = not checked.
PageTable page_table(const megamla_tensor& block_table, int64_t request, int64_t page_size, int64_t num_pages) {
  return {row_of<const int32_t>(block_table, request), block_table.shape[1], page_size,
          num_pages > 0 ? num_pages : kUncheckedPages};
}

RaggedBatch ragged_batch(const megamla_tensor& query_start_loc, const megamla_tensor& seq_lens) {
  return {data<const int32_t>(query_start_loc), data<const int32_t>(seq_lens), seq_lens.shape[0]};
}

}  // namespace

void topk_to_slots_row(const megamla_topk_to_slots_params& p, int64_t token) {
  const int64_t width = p.topk.shape[1];
  const int64_t request = at<const int32_t>(p.token_to_req, token);
  const bool valid = !present(p.is_valid_token) || at<const uint8_t>(p.is_valid_token, token) != 0;
  const int32_t* topk = row_of<const int32_t>(p.topk, token);
  int32_t* slots = row_of<int32_t>(p.slots, token);
  int32_t count = 0;
  if (valid && request >= 0 && request < p.block_table.shape[0]) {
    const PageTable table = page_table(p.block_table, request, p.slots_per_page, p.num_pages);
    for (int64_t i = 0; i < width; ++i) {
      slots[i] = slot_id_of(table, topk[i]);
      count += slots[i] >= 0 ? 1 : 0;
    }
  } else {
    std::fill_n(slots, width, -1);
  }
  at<int32_t>(p.lens, token) = count;
}

void combine_topk_swa_row(const megamla_combine_topk_swa_params& p, int64_t row) {
  const RaggedBatch batch = ragged_batch(p.query_start_loc, p.seq_lens);
  const WorkspaceLayout layout{p.m, p.n};
  const int32_t* topk = row_of<const int32_t>(p.topk, row);
  int32_t* indices = row_of<int32_t>(p.indices, row);
  const int64_t token = batch.query_start(0) + row;
  const int64_t request = batch.request_of(token);
  CombinedRow combined{-1, 0, 0, 0};
  if (request >= 0) {
    combined = combined_row(request, batch.query(request), data<const int32_t>(p.gather_lens)[request], token, p.window,
                            p.compress_ratio, p.topk.shape[1], layout);
  }
  for (int64_t column = 0; column < p.indices.shape[1]; ++column) {
    indices[column] = combined_index(combined, topk, column, layout);
  }
  at<int32_t>(p.lens, row) = static_cast<int32_t>(combined.length());
}

int64_t swa_metadata_tokens(const megamla_swa_metadata_params& p) {
  return std::max(p.slot_mapping.shape[0], p.token_to_req.shape[0]);
}

void swa_metadata_token(const megamla_swa_metadata_params& p, int64_t token) {
  const RaggedBatch batch = ragged_batch(p.query_start_loc, p.seq_lens);
  const int64_t request = batch.request_of(token);
  if (token < p.token_to_req.shape[0]) at<int32_t>(p.token_to_req, token) = static_cast<int32_t>(request);
  if (token >= p.slot_mapping.shape[0]) return;

  const bool valid = at<const int64_t>(p.slot_mapping, token) >= 0;
  at<uint8_t>(p.is_valid_token, token) = valid ? 1 : 0;
  int32_t length = 0;
  if (token < p.decode_swa_indices.shape[0]) {
    const int64_t width = p.decode_swa_indices.shape[1];
    int32_t* slots = row_of<int32_t>(p.decode_swa_indices, token);
    if (valid && request >= 0 && request < p.num_decodes) {
      const int64_t replay_start = present(p.replay_start) ? at<const int32_t>(p.replay_start, request) : 0;
      const PositionRange window = decode_window(batch.query(request), token, {p.window, p.causal != 0}, replay_start);
      const PageTable table = page_table(p.block_table, request, p.page_size, p.num_pages);
      length = static_cast<int32_t>(std::min(window.length, width));
      for (int64_t i = 0; i < length; ++i) slots[i] = slot_id_of(table, window.start + i);
    }
    std::fill(slots + length, slots + width, -1);
  }
  at<int32_t>(p.decode_swa_lens, token) = length;
}

void swa_metadata_prefill(const megamla_swa_metadata_params& p, int64_t prefill) {
  const RaggedBatch batch = ragged_batch(p.query_start_loc, p.seq_lens);
  at<int32_t>(p.prefill_gather_lens, prefill) = prefill_gather_len(batch.query(p.num_decodes + prefill), p.window);
}

}  // namespace megamla::plan
