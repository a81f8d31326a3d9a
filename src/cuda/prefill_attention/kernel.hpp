// The launch, apart from the parameters' translation.
#pragma once

#include "core/status.hpp"
#include "cuda/prefill_attention/params.hpp"

namespace megamla::cuda {

// On the current device, which has `multiprocessors` SMs. `stream` is a cudaStream_t.
// launch_prefill_few_heads takes at most kFewHeads live heads and needs fewer clocks for them.
constexpr int kFewHeads = 16;
Status launch_prefill_few_heads(const PrefillParams& params, int multiprocessors, void* stream);
Status launch_prefill_attention(const PrefillParams& params, int multiprocessors, void* stream);

}  // namespace megamla::cuda
