// The launch of the kernel for few heads, 8 or 16 of them a block.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/decode_attention/params.hpp"
#include "megamla/types.h"

namespace megamla::cuda::few_heads {

// More go to the kernel for many heads.
constexpr int kMostHeads = 16;

// Whether rows of any number of heads, cut into eights, are all attended at once with a step of keys for every crew:
// then nothing is faster.
cudaError_t attends_eights(const DecodeParams& params, megamla_kv_format window, megamla_kv_format compressed,
                           bool batch_invariant, bool* yes);
// Cuts them.
void cut_into_eights(DecodeParams& params);

// Fills in what depends on the device: params.cluster.
cudaError_t launch(DecodeParams params, megamla_kv_format window, megamla_kv_format compressed, bool batch_invariant,
                   cudaStream_t stream);

}  // namespace megamla::cuda::few_heads
