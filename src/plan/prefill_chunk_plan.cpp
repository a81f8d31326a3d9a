#include "plan/prefill_chunk_plan.hpp"

#include <algorithm>

#include "core/c_boundary.hpp"
#include "core/read_struct.hpp"
#include "core/validate.hpp"

namespace megamla::plan {
namespace {

struct RowCounts {
  int64_t compressed;  // c of the contract
  int64_t window;      // g: the request's own tokens and the window before them
};

bool gathers_compressed(const megamla_prefill_chunk_plan_params& p) {
  return p.has_compressed != 0 && p.compress_ratio > 0;  // ratio 0 never divides
}

RowCounts rows_of(const megamla_prefill_chunk_plan_params& p, int64_t request) {
  const int64_t seq_len = p.seq_lens[request];
  const int64_t query_len = p.query_lens[request];
  return {gathers_compressed(p) ? seq_len / p.compress_ratio : 0,
          query_len + std::clamp<int64_t>(seq_len - query_len, 0, p.window - 1)};
}

// Rows that a chunk of several requests may take.
int64_t area_limit(const megamla_prefill_chunk_plan_params& p) {
  const int64_t compressed = gathers_compressed(p) ? (p.max_model_len + p.compress_ratio - 1) / p.compress_ratio : 0;
  return p.chunk_size * (compressed + p.window + p.max_num_batched_tokens);
}

}  // namespace

int64_t prefill_chunk_plan(const megamla_prefill_chunk_plan_params& p, megamla_prefill_chunk* chunks) {
  const int64_t limit = area_limit(p);
  int64_t count = 0;
  for (int64_t start = 0; start < p.num_requests; ++count) {
    RowCounts largest = rows_of(p, start);
    int64_t end = start + 1;
    for (; end < p.num_requests; ++end) {
      const RowCounts next = rows_of(p, end);
      const RowCounts grown{std::max(largest.compressed, next.compressed), std::max(largest.window, next.window)};
      if ((end - start + 1) * (grown.compressed + grown.window) > limit) break;
      largest = grown;
    }
    chunks[count] = {start, end, largest.compressed, largest.compressed + largest.window};
    start = end;
  }
  return count;
}

namespace {

// The bounds keep both sides of the area comparison within 64 bits: 2^24 * 3 * 2^31 and 2^28 * 3 * 2^31.
Status checked_prefill_chunk_plan(const megamla_prefill_chunk_plan_params* params, megamla_prefill_chunk* chunks,
                                  int64_t* num_chunks) {
  megamla_prefill_chunk_plan_params p;
  MEGAMLA_RETURN_IF_ERROR(read_struct("prefill_chunk_plan", "params", params, &p));
  constexpr int64_t kMaxLength = int64_t{1} << 31;
  Validator v("prefill_chunk_plan", -1);
  v.range("num_requests", p.num_requests, 0, int64_t{1} << 28);
  v.require(p.seq_lens != nullptr || p.num_requests == 0, "seq_lens", "a non-null pointer", "NULL");
  v.require(p.query_lens != nullptr || p.num_requests == 0, "query_lens", "a non-null pointer", "NULL");
  v.range("compress_ratio", p.compress_ratio, 0, 2);
  v.range("has_compressed", p.has_compressed, 0, 1);
  v.range("chunk_size", p.chunk_size, 1, int64_t{1} << 24);
  v.range("window", p.window, 1, kMaxLength);
  v.range("max_model_len", p.max_model_len, 0, kMaxLength);
  v.range("max_num_batched_tokens", p.max_num_batched_tokens, 0, kMaxLength);
  v.require(chunks != nullptr || p.num_requests == 0, "chunks", "a non-null pointer", "NULL");
  v.require(num_chunks != nullptr, "num_chunks", "a non-null pointer", "NULL");
  for (int64_t r = 0; v.ok() && r < p.num_requests; ++r) {
    if (p.seq_lens[r] < 0) v.range(fmt::format("seq_lens[{}]", r).c_str(), p.seq_lens[r], 0, INT32_MAX);
    if (p.query_lens[r] < 0) v.range(fmt::format("query_lens[{}]", r).c_str(), p.query_lens[r], 0, INT32_MAX);
  }
  MEGAMLA_RETURN_IF_ERROR(v.status());
  *num_chunks = prefill_chunk_plan(p, chunks);
  return {};
}

}  // namespace
}  // namespace megamla::plan

extern "C" void megamla_prefill_chunk_plan_init(megamla_prefill_chunk_plan_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof(*params);
  params->chunk_size = 4;
  params->window = 128;
}

extern "C" megamla_status megamla_prefill_chunk_plan(const megamla_prefill_chunk_plan_params* params,
                                                     megamla_prefill_chunk* chunks, int64_t* num_chunks) {
  return megamla::guard([&] { return megamla::plan::checked_prefill_chunk_plan(params, chunks, num_chunks); });
}
