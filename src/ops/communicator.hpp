// Sums over tensor-parallel ranks, as a layer and the C ABI call them.
#pragma once

#include "core/status.hpp"
#include "cuda/nccl.hpp"
#include "megamla/communicator.h"

struct megamla_communicator {
  int64_t size = 0;
  int64_t rank = 0;
  int32_t cuda_device = -1;
#if MEGAMLA_HAVE_CUDA
  megamla::cuda::nccl::Rank nccl;
#endif
};

namespace megamla::ops {

Status all_reduce(const megamla_communicator& communicator, const megamla_tensor& x, const megamla_exec& exec);
Status reduce_scatter(const megamla_communicator& communicator, const megamla_tensor& x, const megamla_tensor& y,
                      const megamla_exec& exec);

}  // namespace megamla::ops
