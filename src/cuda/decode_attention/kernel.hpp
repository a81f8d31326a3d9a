// The launch, apart from the parameters' translation.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/decode_attention/params.hpp"
#include "megamla/types.h"
#include "plan/decode_split.hpp"

namespace megamla::cuda {

// How many blocks and clusters the current device holds at once; also makes the kernel ready for its launches there.
cudaError_t decode_attention_device(megamla_kv_format window, megamla_kv_format compressed, plan::DecodeDevice* device);

cudaError_t launch_decode_attention(const DecodeParams& params, megamla_kv_format window, megamla_kv_format compressed,
                                    int64_t blocks, cudaStream_t stream);

}  // namespace megamla::cuda
