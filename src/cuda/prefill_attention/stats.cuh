// What a head of a row is left with at the end: its factor, lse and max_logits.
#pragma once

#include "cuda/prefill_attention/tiles.cuh"

namespace megamla::cuda::prefill {

// In base-2 units.
struct HeadStats {
  float max;  // the running maximum that the sum refers to
  float sum;  // of 2^(logit - max)
  float top;  // the largest logit
};

__device__ __forceinline__ float load_sink(const PrefillParams& p, int head) {
  return p.sink != nullptr && head < p.live_heads ? p.sink[head * p.sink_stride] : __int_as_float(0xff800000);
}

// The factor of the head's accumulators, 0 where the output is 0.
__device__ __forceinline__ float head_factor(const HeadStats& s, float sink, bool outside) {
  const float factor = __fdividef(1, s.sum + exp2f(sink * 1.44269504F - s.max));
  return s.sum == 0 || outside ? 0 : factor;
}

__device__ __forceinline__ void store_stats(const PrefillParams& p, int token, int head, const HeadStats& s,
                                            bool outside) {
  constexpr float kLn2 = 0.69314718F;
  const float nan = __int_as_float(0x7fc00000);
  const float infinity = __int_as_float(0x7f800000);
  const bool empty = s.sum == 0;
  if (p.lse != nullptr) {
    p.lse[token * p.lse_token_stride + head * p.lse_head_stride] = empty     ? infinity
                                                                   : outside ? nan
                                                                             : kLn2 * (s.max + log2f(s.sum));
  }
  if (p.max_logits != nullptr) {
    p.max_logits[token * p.max_token_stride + head * p.max_head_stride] = empty     ? -infinity
                                                                          : outside ? nan
                                                                                    : kLn2 * s.top;
  }
}

}  // namespace megamla::cuda::prefill
