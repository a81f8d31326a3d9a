#include "plan/compressed_slot_mapping.hpp"

#include "core/c_boundary.hpp"
#include "core/validate.hpp"
#include "megamla/plan.h"

namespace megamla::plan {
namespace {

struct Arguments {
  megamla_tensor query_start_loc;
  megamla_tensor seq_lens;
  megamla_tensor block_table;
  int64_t states_per_page;
  megamla_tensor slot_mapping;
};

megamla_tensor or_absent(const megamla_tensor* tensor) { return tensor == nullptr ? megamla_tensor{} : *tensor; }

Status validate(const Arguments& a) {
  constexpr int64_t kAny = Validator::kAny;
  Validator v("compressed_slot_mapping", -1);
  v.tensor("seq_lens", a.seq_lens, {MEGAMLA_I32}, {kAny}, 0);
  if (!v.ok()) return v.status();
  const int64_t requests = a.seq_lens.shape[0];
  v.tensor("query_start_loc", a.query_start_loc, {MEGAMLA_I32}, {requests + 1}, 0);
  v.tensor("block_table", a.block_table, {MEGAMLA_I32}, {requests, kAny}, 1);
  v.range("states_per_page", a.states_per_page, 1, INT32_MAX);
  v.tensor("slot_mapping", a.slot_mapping, {MEGAMLA_I64}, {kAny}, 0, Validator::Access::kWrite);
  v.no_overlap("slot_mapping", a.slot_mapping, "query_start_loc", a.query_start_loc)
      .no_overlap("slot_mapping", a.slot_mapping, "seq_lens", a.seq_lens)
      .no_overlap("slot_mapping", a.slot_mapping, "block_table", a.block_table);
  return v.status();
}

Status compressed_slot_mapping(const Arguments& a) {
  MEGAMLA_RETURN_IF_ERROR(validate(a));
  const RaggedBatch batch{data<const int32_t>(a.query_start_loc), data<const int32_t>(a.seq_lens), a.seq_lens.shape[0]};
  for (int64_t token = 0; token < a.slot_mapping.shape[0]; ++token) {
    const int64_t request = batch.request_of(token);
    int64_t slot = -1;
    if (request >= 0) {
      const int64_t columns = a.block_table.shape[1];
      const int32_t* entries = row_of<const int32_t>(a.block_table, request);
      slot = compressed_slot({entries, columns, a.states_per_page, kUncheckedPages},
                             batch.query(request).position_of(token));
    }
    at<int64_t>(a.slot_mapping, token) = slot;
  }
  return {};
}

}  // namespace
}  // namespace megamla::plan

extern "C" megamla_status megamla_compressed_slot_mapping(const megamla_tensor* query_start_loc,
                                                          const megamla_tensor* seq_lens,
                                                          const megamla_tensor* block_table, int64_t states_per_page,
                                                          const megamla_tensor* slot_mapping) {
  return megamla::guard([&] {
    using megamla::plan::or_absent;
    return megamla::plan::compressed_slot_mapping({or_absent(query_start_loc), or_absent(seq_lens),
                                                   or_absent(block_table), states_per_page, or_absent(slot_mapping)});
  });
}
