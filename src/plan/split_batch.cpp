#include "plan/split_batch.hpp"

#include "core/c_boundary.hpp"
#include "core/validate.hpp"

namespace megamla::plan {

megamla_batch_split split_batch(std::span<const int32_t> query_lens, int64_t threshold) {
  megamla_batch_split split{};
  for (const int64_t query_len : query_lens) {
    if (split.num_prefills == 0 && query_len <= threshold) {
      ++split.num_decodes;
      split.num_decode_tokens += query_len;
    } else {
      ++split.num_prefills;
      split.num_prefill_tokens += query_len;
    }
  }
  return split;
}

namespace {

Status checked_split_batch(const int32_t* query_lens, int64_t num_requests, int64_t threshold,
                           megamla_batch_split* split) {
  Validator v("split_batch", -1);
  v.range("num_requests", num_requests, 0, int64_t{1} << 31);
  v.require(query_lens != nullptr || num_requests == 0, "query_lens", "a non-null pointer", "NULL");
  v.range("threshold", threshold, 1, int64_t{1} << 31);
  v.require(split != nullptr, "split", "a non-null pointer", "NULL");
  for (int64_t r = 0; v.ok() && r < num_requests; ++r) {
    if (query_lens[r] < 0) v.range(fmt::format("query_lens[{}]", r).c_str(), query_lens[r], 0, INT32_MAX);
  }
  MEGAMLA_RETURN_IF_ERROR(v.status());
  *split = split_batch({query_lens, static_cast<size_t>(num_requests)}, threshold);
  return {};
}

}  // namespace
}  // namespace megamla::plan

extern "C" megamla_status megamla_split_batch(const int32_t* query_lens, int64_t num_requests, int64_t threshold,
                                              megamla_batch_split* split) {
  return megamla::guard([&] { return megamla::plan::checked_split_batch(query_lens, num_requests, threshold, split); });
}
