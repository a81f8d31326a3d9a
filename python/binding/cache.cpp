// Writers and readers of the paged caches: kv_insert, kv_gather, kv_compress, page_layout_scores.
#include <tvm/ffi/container/array.h>

#include "call.hpp"

namespace megamla::python {
namespace {

void kv_insert(DLTensor* latent, MaybeTensor positions, MaybeTensor cos_sin, DLTensor* slot_mapping, DLTensor* cache,
               int64_t layout, int64_t writer, int64_t compress_ratio, MaybeTensor skipped_rows, int64_t device,
               int64_t num_threads, MaybeTensor workspace) {
  Call call("kv_insert", {device, num_threads, workspace});
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = call.tensor("latent", latent, {MEGAMLA_BF16});
  p.positions = call.tensor("positions", positions, {MEGAMLA_I32, MEGAMLA_I64});
  p.cos_sin = call.tensor("cos_sin", cos_sin, {MEGAMLA_F32});
  p.slot_mapping = call.tensor("slot_mapping", slot_mapping, {MEGAMLA_I64});
  p.cache = call.cache("cache", cache, layout);
  p.writer = static_cast<int32_t>(writer);
  p.compress_ratio = static_cast<int32_t>(compress_ratio);
  p.skipped_rows = call.tensor("skipped_rows", skipped_rows, {MEGAMLA_I64});
  call.run(megamla_kv_insert, p);
}

void kv_gather(DLTensor* cache, int64_t layout, DLTensor* seq_lens, MaybeTensor gather_lens, DLTensor* block_table,
               int64_t offset, DLTensor* out, int64_t device, int64_t num_threads, MaybeTensor workspace) {
  Call call("kv_gather", {device, num_threads, workspace});
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = call.cache("cache", cache, layout);
  p.seq_lens = call.tensor("seq_lens", seq_lens, {MEGAMLA_I32});
  p.gather_lens = call.tensor("gather_lens", gather_lens, {MEGAMLA_I32});
  p.block_table = call.tensor("block_table", block_table, {MEGAMLA_I32});
  p.offset = offset;
  p.out = call.tensor("out", out, {MEGAMLA_BF16});
  call.run(megamla_kv_gather, p);
}

void kv_compress(int64_t compress_ratio, double eps, DLTensor* kv_score, DLTensor* weight, MaybeTensor token_to_req,
                 MaybeTensor positions, MaybeTensor state_block, MaybeTensor state, DLTensor* latent,
                 MaybeTensor written, int64_t device, int64_t num_threads, MaybeTensor workspace) {
  Call call("kv_compress", {device, num_threads, workspace});
  megamla_kv_compress_params p;
  megamla_kv_compress_init(&p);
  p.compress_ratio = static_cast<int32_t>(compress_ratio);
  p.eps = static_cast<float>(eps);
  p.kv_score = call.tensor("kv_score", kv_score, {MEGAMLA_F32});
  p.weight = call.tensor("weight", weight, {MEGAMLA_BF16});
  p.token_to_req = call.tensor("token_to_req", token_to_req, {MEGAMLA_I32});
  p.positions = call.tensor("positions", positions, {MEGAMLA_I32, MEGAMLA_I64});
  p.state_block = call.tensor("state_block", state_block, {MEGAMLA_I32});
  p.state = call.tensor("state", state, {MEGAMLA_F32});
  p.latent = call.tensor("latent", latent, {MEGAMLA_BF16});
  p.written = call.tensor("written", written, {MEGAMLA_U8});
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.kv_score.shape[0];
  call.run(megamla_kv_compress, p, megamla_kv_compress_workspace_size, limits);
}

// [planar, interleaved, likely]
tvm::ffi::Array<double> page_layout_scores(DLTensor* cache, MaybeTensor slots) {
  Call call("page_layout_scores", {MEGAMLA_DEVICE_CPU, 0, {}});
  const megamla_kv_cache pages = call.cache("cache", cache, MEGAMLA_PAGE_PLANAR);
  const megamla_tensor list = call.tensor("slots", slots, {MEGAMLA_I64});
  if (slots.has_value() && (list.ndim != 1 || list.cuda_device >= 0 || list.stride[0] != 1)) {
    TVM_FFI_THROW(ValueError) << "page_layout_scores: slots: expected contiguous I64 [slots] in host memory, got other";
  }
  double planar = 0;
  double interleaved = 0;
  int32_t likely = -1;
  check(megamla_page_layout_scores(&pages, static_cast<const int64_t*>(list.data), list.shape[0], &planar, &interleaved,
                                   &likely));
  return {planar, interleaved, static_cast<double>(likely)};
}

}  // namespace
}  // namespace megamla::python

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kv_insert, megamla::python::kv_insert);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kv_gather, megamla::python::kv_gather);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kv_compress, megamla::python::kv_compress);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(page_layout_scores, megamla::python::page_layout_scores);
