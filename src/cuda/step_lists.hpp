#pragma once

#include "core/status.hpp"
#include "megamla/types.h"
#include "plan/step_lists.hpp"

namespace megamla::cuda {

// Of ops/step_lists.hpp, on memory of the current device.
Status builtin_topk(const megamla_tensor& positions, int64_t compress_ratio, const megamla_tensor& topk,
                    CUstream_st* stream);
Status gathered_lens(const plan::RaggedBatch& batch, int64_t window, int64_t compress_ratio, int32_t* window_lens,
                     int32_t* compressed_lens, CUstream_st* stream);
Status fill_f32(const megamla_tensor& t, float value, CUstream_st* stream);

}  // namespace megamla::cuda
