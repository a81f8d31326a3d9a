// Plans: from lengths in host memory to the shape of a step.
#include <tvm/ffi/container/array.h>

#include <string>
#include <vector>

#include "call.hpp"

namespace megamla::python {
namespace {

using Integers = tvm::ffi::Array<int64_t>;

const int32_t* lengths(Call& call, const char* op, const char* name, DLTensor* tensor, int64_t& count) {
  const megamla_tensor list = call.tensor(name, tensor, {MEGAMLA_I32});
  if (list.ndim != 1 || list.cuda_device >= 0 || (list.shape[0] > 1 && list.stride[0] != 1)) {
    TVM_FFI_THROW(ValueError) << op << ": " << name << ": expected contiguous I32 [requests] in host memory, got other";
  }
  count = list.shape[0];
  return static_cast<const int32_t*>(list.data);
}

// [decodes, prefills, decode tokens, prefill tokens]
Integers split_batch(DLTensor* query_lens, int64_t threshold) {
  Call call("split_batch", {MEGAMLA_DEVICE_CPU, 0, {}});
  int64_t requests = 0;
  const int32_t* lens = lengths(call, "split_batch", "query_lens", query_lens, requests);
  megamla_batch_split split;
  check(megamla_split_batch(lens, requests, threshold, &split));
  return {split.num_decodes, split.num_prefills, split.num_decode_tokens, split.num_prefill_tokens};
}

// [start, end, n, m] per chunk
tvm::ffi::Array<Integers> prefill_chunk_plan(DLTensor* seq_lens, DLTensor* query_lens, int64_t compress_ratio,
                                             bool has_compressed, int64_t chunk_size, int64_t window,
                                             int64_t max_model_len, int64_t max_num_batched_tokens) {
  const char* op = "prefill_chunk_plan";
  Call call(op, {MEGAMLA_DEVICE_CPU, 0, {}});
  megamla_prefill_chunk_plan_params p;
  megamla_prefill_chunk_plan_init(&p);
  int64_t queries = 0;
  p.seq_lens = lengths(call, op, "seq_lens", seq_lens, p.num_requests);
  p.query_lens = lengths(call, op, "query_lens", query_lens, queries);
  if (queries != p.num_requests) {
    TVM_FFI_THROW(ValueError) << op << ": query_lens: expected I32 [" << p.num_requests << "], got I32 [" << queries
                              << "]";
  }
  p.compress_ratio = compress_ratio;
  p.has_compressed = has_compressed ? 1 : 0;
  p.chunk_size = chunk_size;
  p.window = window;
  p.max_model_len = max_model_len;
  p.max_num_batched_tokens = max_num_batched_tokens;
  std::vector<megamla_prefill_chunk> chunks(static_cast<size_t>(p.num_requests));
  int64_t count = 0;
  check(megamla_prefill_chunk_plan(&p, chunks.data(), &count));
  tvm::ffi::Array<Integers> plan;
  for (int64_t i = 0; i < count; ++i) {
    const megamla_prefill_chunk& chunk = chunks[static_cast<size_t>(i)];
    plan.push_back({chunk.start, chunk.end, chunk.n, chunk.m});
  }
  return plan;
}

}  // namespace
}  // namespace megamla::python

TVM_FFI_DLL_EXPORT_TYPED_FUNC(split_batch, megamla::python::split_batch);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill_chunk_plan, megamla::python::prefill_chunk_plan);
