// The shape of a block_scaled_linear call, a left-out group counted as one.
#pragma once

#include <cstdint>

#include "megamla/block_scaled_linear.h"

namespace megamla::plan {

struct LinearShape {
  int64_t tokens;
  int64_t groups;
  int64_t in;
  int64_t out;
};

inline LinearShape linear_shape(const megamla_block_scaled_linear_params& p) {
  const bool grouped = p.weight.ndim == 3;
  return {p.x.shape[0], grouped ? p.weight.shape[0] : 1, p.weight.shape[grouped ? 2 : 1],
          p.weight.shape[grouped ? 1 : 0]};
}

// Stride of the group dimension of x or y, 0 where it is left out.
inline int64_t group_stride(const megamla_tensor& t) { return t.ndim == 3 ? t.stride[1] : 0; }

}  // namespace megamla::plan
