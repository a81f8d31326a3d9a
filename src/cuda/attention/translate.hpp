// The parameters of decode_attention and prefill_attention, as far as they are alike, in the form of the kernels.
#pragma once

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "cuda/attention/params.hpp"
#include "megamla/decode_attention.h"

namespace megamla::cuda {

// `logit_unit`: what the kernel's sums of q k are to be multiplied by beside the softmax scale; `tile_heads`: the most
// heads of a block.
template <class Params>
void set_query(AttentionParams& d, const Params& p, float logit_unit, int tile_heads = kTileHeads) {
  constexpr float kLog2E = 1.44269504088896F;
  d.q = data<const uint16_t>(p.q);
  d.q_token_stride = p.q.stride[0];
  d.q_head_stride = p.q.stride[1];
  d.q_chunked = p.q_layout == MEGAMLA_Q_CHUNKED;
  d.q_norm = p.q_norm;
  d.q_norm_eps = p.q_norm_eps;
  d.logit_scale = p.softmax_scale * kLog2E * logit_unit;
  d.heads = static_cast<int32_t>(p.q.shape[1]);
  d.live_heads = p.live_heads == 0 ? d.heads : static_cast<int32_t>(p.live_heads);
  d.head_tiles_log = d.live_heads > tile_heads ? 1 : 0;  // at most two blocks' heads
  d.items = static_cast<uint32_t>(p.q.shape[0] << d.head_tiles_log);
  if (!present(p.cos_sin)) return;
  d.positions = p.positions.data;
  d.positions_stride = p.positions.stride[0];
  d.positions_64 = p.positions.dtype == MEGAMLA_I64;
  d.cos_sin = data<const float>(p.cos_sin);
  d.cos_sin_rows = p.cos_sin.shape[0];
  d.cos_sin_stride = p.cos_sin.stride[0];
}

template <class Params>
void set_output(AttentionParams& d, const Params& p) {
  d.output = p.output;
  d.out = p.out.data;
  d.out_token_stride = p.out.stride[0];
  d.out_head_stride = p.out.stride[1];
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    d.out_scale = data<int32_t>(p.out_scale);
    d.scale_group_stride = p.out_scale.stride[1];
    d.scale_word_stride = p.out_scale.stride[2];
  }
  if (present(p.attn_sink)) {
    d.sink = data<const float>(p.attn_sink);
    d.sink_stride = p.attn_sink.stride[0];
  }
  if (present(p.lse)) {
    d.lse = data<float>(p.lse);
    d.lse_token_stride = p.lse.stride[0];
    d.lse_head_stride = p.lse.stride[1];
  }
}

// Data and the strides of every dimension but the last, in bytes.
inline Status expect_aligned(const char* op, const char* argument, const megamla_tensor& t, int64_t bytes) {
  const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0;
  for (int d = 0; d + 1 < t.ndim; ++d) aligned = aligned && t.stride[d] * size % bytes == 0;
  if (aligned) return {};
  return unsupported(
      "{}: {}: expected data and strides in multiples of {} bytes, got {} and strides of {}, {} elements", op, argument,
      bytes, t.data, t.stride[0], t.stride[1]);
}

// What both kernels ask of their arguments.
template <class Params>
Status expect_aligned_rows(const char* op, const Params& p) {
  MEGAMLA_RETURN_IF_ERROR(expect_aligned(op, "q", p.q, 16));
  if (present(p.cos_sin)) MEGAMLA_RETURN_IF_ERROR(expect_aligned(op, "cos_sin", p.cos_sin, 16));
  return expect_aligned(op, "out", p.out, p.output == MEGAMLA_OUTPUT_BF16 ? 4 : 8);
}

}  // namespace megamla::cuda
