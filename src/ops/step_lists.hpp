// What a layer derives from a step's metadata where that lies. Not ops of the C ABI: parameters come from a layer,
// which has checked them.
#pragma once

#include "core/status.hpp"
#include "megamla/types.h"

namespace megamla::ops {

// megamla_builtin_topk: positions I32 or I64 [T], topk I32 [T, K].
Status builtin_topk(const megamla_tensor& positions, int64_t compress_ratio, const megamla_tensor& topk,
                    const megamla_exec& exec);

// Rows that each request's prefill gathers: window_lens I32 [R], and compressed_lens I32 [R] for a ratio above 0.
struct GatheredLensParams {
  megamla_tensor query_start_loc;  // I32 [R + 1]
  megamla_tensor seq_lens;         // I32 [R]
  int64_t window;
  int64_t compress_ratio;
  megamla_tensor window_lens;
  megamla_tensor compressed_lens;
};
Status gathered_lens(const GatheredLensParams& params, const megamla_exec& exec);

// Every element of F32 [n, m], rows contiguous.
Status fill_f32(const megamla_tensor& t, float value, const megamla_exec& exec);

}  // namespace megamla::ops
