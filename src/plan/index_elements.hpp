// The arithmetic of the index transforms of contract section 8, element by element, for host and device. Bad lengths
// and entries give -1 or nothing (contract section 14), never an access out of bounds or a wrapped number.
#pragma once

#include "plan/page_table.hpp"
#include "plan/ragged_batch.hpp"

namespace megamla::plan {

// Positions start .. start + length - 1.
struct PositionRange {
  int64_t start;
  int64_t length;
};

struct WindowRule {
  int64_t window;
  bool causal;  // false: draft block
};

// Window positions of a decode token. A causal token sees its window up to itself; every token of a draft block sees
// the window before the block and the whole block. Nothing before replay_start.
MEGAMLA_HD constexpr PositionRange decode_window(const Query& query, int64_t token, WindowRule rule,
                                                 int64_t replay_start) {
  const int64_t position = query.position_of(token);
  const int64_t end = rule.causal ? position + 1 : query.seq_len;
  int64_t start = rule.causal ? position - rule.window + 1 : query.prefix() - rule.window;
  if (start < replay_start) start = replay_start;
  if (start < 0) start = 0;
  return {start, end > start ? end - start : 0};
}

// Window rows that the prefill of a request gathers: its own tokens and the window before them.
MEGAMLA_HD constexpr int32_t prefill_gather_len(const Query& query, int64_t window) {
  const int64_t query_len = query.len() > 0 ? query.len() : 0;
  const int64_t prefix = query.seq_len - query_len;
  const int64_t rows = query_len + (prefix < window - 1 ? prefix : window - 1);
  return static_cast<int32_t>(rows < 0 ? 0 : rows > INT32_MAX ? INT32_MAX : rows);
}

// Rows of the gathered workspace, per request: m, of which the first n are compressed rows and the others window rows.
struct WorkspaceLayout {
  int64_t m;
  int64_t n;
};

// `row` of a request as an index over all requests' rows; -1 unless begin <= row < end.
MEGAMLA_HD constexpr int32_t workspace_index(WorkspaceLayout layout, int64_t request, int64_t row, int64_t begin,
                                             int64_t end) {
  if (row < begin || row >= end) return -1;
  const int64_t index = layout.m * request + row;
  return index > INT32_MAX ? -1 : static_cast<int32_t>(index);
}

// What a prefill token attends to: its first `compressed` top-k rows, then `window` rows of the workspace from
// `window_row` on.
struct CombinedRow {
  int64_t request;  // -1: a row past the last token
  int64_t compressed;
  int64_t window;
  int64_t window_row;

  MEGAMLA_HD constexpr int64_t length() const { return compressed + window; }
};

// `token`, of the request's query, counts as query_start_loc does.
MEGAMLA_HD constexpr CombinedRow combined_row(int64_t request, const Query& query, int64_t gather_len, int64_t token,
                                              int64_t window, int64_t compress_ratio, int64_t topk_width,
                                              WorkspaceLayout layout) {
  CombinedRow row{request, 0, 0, 0};
  const int64_t position = query.position_of(token);
  if (position < 0) return row;
  if (compress_ratio > 0) {
    const int64_t closed_groups = compress_ratio == 2 ? (position + 1) / 2 : position + 1;
    row.compressed = closed_groups < topk_width ? closed_groups : topk_width;
  }
  const int64_t gather_start = query.seq_len - gather_len;
  int64_t start = position - window + 1;
  if (start < gather_start) start = gather_start;
  if (start < 0) start = 0;
  if (start <= position) row.window = position - start + 1;
  row.window_row = layout.n + (start - gather_start);
  return row;
}

// Column `column` of the row; topk: the token's top-k row.
MEGAMLA_HD constexpr int32_t combined_index(const CombinedRow& row, const int32_t* topk, int64_t column,
                                            WorkspaceLayout layout) {
  if (column < row.compressed) return workspace_index(layout, row.request, topk[column], 0, layout.n);
  if (column >= row.length()) return -1;
  return workspace_index(layout, row.request, row.window_row + column - row.compressed, layout.n, layout.m);
}

}  // namespace megamla::plan
