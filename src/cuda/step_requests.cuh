// Whose query a token of a step belongs to, by the lanes of a warp: a guess that is nearly always right is read at the
// same time as what it is checked against.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "cuda/ptx/sync.cuh"
#include "plan/divisor.hpp"
#include "plan/ragged_batch.hpp"

namespace megamla::cuda {

constexpr int kLanes = 32;
constexpr unsigned kFullWarp = 0xffffffffU;

// A step's tokens, and whose query a token is likely to be of: most steps have as many tokens of each request, or one.
struct Batch {
  plan::RaggedBatch lists;
  plan::Divisor tokens_each;
};
inline Batch ragged_batch(const megamla_tensor& query_start_loc, const megamla_tensor& seq_lens, int64_t tokens) {
  const int64_t requests = seq_lens.shape[0];
  const bool even = requests > 0 && tokens >= requests && tokens % requests == 0;
  return {{data<const int32_t>(query_start_loc), data<const int32_t>(seq_lens), requests},
          plan::Divisor(even ? tokens / requests : 1)};
}

// A request, and what the lists say of it.
struct Found {
  int64_t request;  // -1: none
  plan::Query query;
  int32_t extra;  // its element of a list that the caller names
};

// Where that stands.
struct Places {
  int64_t request;
  const int32_t* query_start;
  const int32_t* seq_len;
  const int32_t* extra;  // null: no list

  __device__ Places(const plan::RaggedBatch& lists, const int32_t* extras, int64_t r)
      : request(r),
        query_start(lists.query_start_loc + r),
        seq_len(lists.seq_lens + r),
        extra(extras == nullptr ? nullptr : extras + r) {}
  __device__ Found read() const {
    return {request,
            {ptx::load_here(query_start), ptx::load_here(query_start + 1), ptx::load_here(seq_len)},
            extra == nullptr ? 0 : ptx::load_here(extra)};
  }
};

// The request of a token between the first and the last query's bounds, by all lanes: 32 requests are tried at once.
__device__ inline int64_t search(const plan::RaggedBatch& lists, int64_t token) {
  const auto lane = static_cast<int>(threadIdx.x) % kLanes;
  int64_t low = 0;  // query_start(low) <= token < query_start(high), all the way
  int64_t high = lists.num_requests;
  while (high - low > 1) {
    const int64_t step = (high - low + kLanes - 1) / kLanes;
    const int64_t probe = low + (lane + 1) * step;
    const bool behind = probe < high && lists.query_start_loc[probe] <= token;
    const int passed = __ffs(static_cast<int>(~__ballot_sync(kFullWarp, behind))) - 1;
    high = min(low + (passed + 1) * step, high);
    low += passed * step;
  }
  return low;
}

// The likely place of the request of token `index` of the step. Reads nothing.
__device__ inline Places guess(const Batch& batch, const int32_t* extras, int64_t index) {
  const int64_t request = batch.tokens_each.quotient(static_cast<uint32_t>(index));
  return {batch.lists, extras, max(min(request, batch.lists.num_requests - 1), int64_t{0})};
}

// The request whose query holds a token (plan::RaggedBatch::request_of; of lists that descend somewhere, one of
// several), by all lanes of a warp: token `index` of the step, counted from the first query's start (`from_start`) or
// as query_start_loc does.
__device__ inline Found find_request(const Batch& batch, const int32_t* extras, const Places& likely, int64_t index,
                                     bool from_start, int64_t& token) {
  const plan::RaggedBatch& lists = batch.lists;
  if (lists.num_requests == 0) return {-1, {0, 0, 0}, 0};
  const Found found = likely.read();
  const int first = ptx::load_here(lists.query_start_loc);
  const int end = ptx::load_here(lists.query_start_loc + lists.num_requests);
  token = from_start ? int64_t{first} + index : index;
  if (token < first || token >= end) return {-1, {0, 0, 0}, 0};
  if (found.query.holds(token)) return found;
  return Places(lists, extras, search(lists, token)).read();
}

// The same for kTokens tokens a warp: lane l looks for token `index`, that of lane l % kTokens, as query_start_loc
// counts it. Guesses that are wrong are searched for by all lanes, one token after the other.
template <int kTokens>
__device__ inline Found find_requests(const Batch& batch, const int32_t* extras, const Places& likely, int64_t index) {
  int64_t token = index;
  if constexpr (kTokens == 1) return find_request(batch, extras, likely, index, false, token);
  const plan::RaggedBatch& lists = batch.lists;
  if (lists.num_requests == 0) return {-1, {0, 0, 0}, 0};
  Found found = likely.read();
  const bool inside = token >= ptx::load_here(lists.query_start_loc) &&
                      token < ptx::load_here(lists.query_start_loc + lists.num_requests);
  const bool wrong = inside && !found.query.holds(token);
  const int own = static_cast<int>(threadIdx.x) % kTokens;
  int64_t request = 0;
  for (unsigned all = __ballot_sync(kFullWarp, wrong) & ((1U << kTokens) - 1); all != 0; all &= all - 1) {
    const int other = __ffs(static_cast<int>(all)) - 1;
    const int64_t low = search(lists, __shfl_sync(kFullWarp, token, other));
    if (other == own) request = low;
  }
  if (wrong) found = Places(lists, extras, request).read();
  if (!inside) found.request = -1;
  return found;
}

}  // namespace megamla::cuda
