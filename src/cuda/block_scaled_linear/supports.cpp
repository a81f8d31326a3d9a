#include "cuda/block_scaled_linear/block_scaled_linear.hpp"
#include "cuda/block_scaled_linear/tile_plan.hpp"
#include "cuda/launch.hpp"
#include "plan/linear_shape.hpp"

namespace megamla::cuda {

Status block_scaled_linear_supports(const megamla_block_scaled_linear_params& p) {
  using namespace linear;
  if (reinterpret_cast<uintptr_t>(p.weight.data) % 16 != 0) {
    return unsupported("weight: expected an address that is a multiple of 16, got {}", p.weight.data);
  }
  const plan::LinearShape s = plan::linear_shape(p);
  const int64_t blocks = ceil_div(s.tokens, 128) * s.groups * ceil_div(s.out, 128) * kMaxSplits;
  if (blocks > kMaxBlocks) return unsupported("tokens and rows: expected at most {} tiles, got {}", kMaxBlocks, blocks);
  return {};
}

}  // namespace megamla::cuda
