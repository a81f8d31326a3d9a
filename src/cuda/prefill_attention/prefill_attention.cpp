#include "cuda/prefill_attention/prefill_attention.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/attention/translate.hpp"
#include "cuda/launch.hpp"
#include "cuda/prefill_attention/kernel.hpp"

namespace megamla::cuda {
namespace {

void set_keys(PrefillParams& d, const megamla_prefill_attention_params& p) {
  d.kv = data<const uint16_t>(p.kv);
  d.kv_row_bytes = p.kv.stride[0] * int64_t{sizeof(uint16_t)};
  // Indices are int32, none is larger.
  d.kv_rows = static_cast<uint32_t>(std::min<int64_t>(p.kv.shape[0], int64_t{INT32_MAX} + 1));
  d.indices = data<const int32_t>(p.indices);
  d.indices_row_stride = p.indices.stride[0];
  d.indices_column_stride = p.indices.stride[1];
  d.width = d.kv_rows == 0 ? 0 : static_cast<int32_t>(p.indices.shape[1]);
  if (present(p.topk_length)) {
    d.lengths = data<const int32_t>(p.topk_length);
    d.lengths_stride = p.topk_length.stride[0];
  }
}

}  // namespace

Status prefill_attention_supports(const megamla_prefill_attention_params& p) {
  return expect_aligned_rows("prefill_attention", p);
}

Status prefill_attention(const megamla_prefill_attention_params& p, const megamla_exec& exec) {
  PrefillParams d{};
  set_query(d, p, 1);
  set_output(d, p);
  if (d.items == 0) return {};
  set_keys(d, p);
  if (present(p.max_logits)) {
    d.max_logits = data<float>(p.max_logits);
    d.max_token_stride = p.max_logits.stride[0];
    d.max_head_stride = p.max_logits.stride[1];
  }
  const int blocks = multiprocessors(p.q.cuda_device);
  return d.live_heads <= kFewHeads ? launch_prefill_few_heads(d, blocks, exec.stream)
                                   : launch_prefill_attention(d, blocks, exec.stream);
}

}  // namespace megamla::cuda
