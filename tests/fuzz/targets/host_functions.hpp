// Functions of the C ABI that are no ops, each given decisions: called by the index_ops target.
#pragma once

#include <numeric>

#include "fuzz/tensors.hpp"
#include "megamla/megamla.hpp"

namespace megamla::fuzz {

// query_start_loc [requests + 1]: ascending, or now and then anything.
inline megamla_tensor start_locations(Views& v, int64_t requests, int64_t longest, int64_t* tokens) {
  const megamla_tensor t = v.integers(MEGAMLA_I32, {requests + 1}, 0, 0, longest);
  auto* values = data<int32_t>(t);
  const bool sane = v.choices().coin();
  *tokens = v.random(0, 24);
  if (!sane) return t;
  for (int64_t r = 0; r <= requests; ++r) values[r] = static_cast<int32_t>(v.random(0, longest));
  std::partial_sum(values, values + requests + 1, values);
  *tokens = values[requests] - values[0];
  return t;
}

void split_batch(Choices& c);
void prefill_chunk_plan(Choices& c);
void compressed_slot_mapping(Choices& c);
void builtin_topk(Choices& c);
void output_pair(Choices& c);
void layer_config(Choices& c);
void workspace(Choices& c);

}  // namespace megamla::fuzz
