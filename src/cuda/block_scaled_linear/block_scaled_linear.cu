#include "core/tensor.hpp"
#include "cuda/block_scaled_linear/block_scaled_linear.hpp"
#include "cuda/block_scaled_linear/linear_tile.cuh"
#include "cuda/launch.hpp"

namespace megamla::cuda {
namespace {

using Params = megamla_block_scaled_linear_params;
using namespace linear;

constexpr const char* kOp = "block_scaled_linear";
constexpr int kMostTokenTiles = 16;
constexpr int kMostTokenTilesBf16 = 8;  // BF16 weights take twice the registers on their way

bool is_aligned(const megamla_tensor& t, int64_t element, int64_t bytes) {
  const auto at = [&](int64_t offset) { return offset % bytes == 0; };
  const int64_t first = t.ndim >= 2 ? t.stride[0] * element : 0;
  return at(static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data) % 16)) && at(first) &&
         at(plan::group_stride(t) * element);
}

// Everything but the tiles.
LinearArgs args_of(const Params& p, const plan::LinearShape& s) {
  LinearArgs a{};
  a.tokens = s.tokens;
  a.groups = s.groups;
  a.in = s.in;
  a.out = s.out;
  a.x = p.x.data;
  a.x_token = p.x.stride[0];
  a.x_group = plan::group_stride(p.x);
  a.x_aligned = p.input == MEGAMLA_LINEAR_IN_BF16 ? is_aligned(p.x, 2, 16) : is_aligned(p.x, 1, 8);
  a.x_scale = p.x_scale.data;
  a.x_scale_packed = p.input == MEGAMLA_LINEAR_IN_FP8_PAIR;
  a.x_scale_token = p.x_scale.stride[0];
  a.x_scale_group = p.x_scale.stride[1];
  a.x_scale_word = p.x_scale.stride[2];
  a.weight = p.weight.data;
  a.weight_scale = data<const uint8_t>(p.weight_scale);
  a.rows_per_scale_log2 = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? 5 : 0;
  a.y = p.y.data;
  a.y_token = p.y.stride[0];
  a.y_group = plan::group_stride(p.y);
  a.output = p.output;
  const int64_t element = p.output == MEGAMLA_LINEAR_OUT_F32 ? 4 : p.output == MEGAMLA_LINEAR_OUT_BF16 ? 2 : 1;
  a.y_aligned = is_aligned(p.y, element, 4 * element);
  a.y_scale = data<uint8_t>(p.y_scale);
  return a;
}

template <class Run, bool kFp8X, int kTokenTiles>
Status run_tiles(LinearArgs a, const Params& p, const megamla_exec& exec) {
  using Shape = TileShape<kTokenTiles, Run::kBytes>;
  a.row_tiles = ceil_div(a.out, kTileRows);
  a.token_tiles = ceil_div(a.tokens, Shape::kTokens);
  // Batch-invariant: the order of a row's sum must not follow from the number of tokens.
  const int64_t tiles = a.row_tiles * a.groups * (p.batch_invariant != 0 ? 1 : a.token_tiles);
  a.splits = splits_for(tiles, a.in, multiprocessors(p.x.cuda_device));
  auto* kernel = linear_tile<Run, kFp8X, kTokenTiles>;
  MEGAMLA_CUDA_CALL(
      kOp, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{Shape::kSharedBytes}));
  LaunchShape shape{a.row_tiles * a.groups * a.token_tiles * a.splits, Shape::kThreads, Shape::kSharedBytes};
  shape.cluster = a.splits;
  return launch(kOp, shape, exec.stream, kernel, a);
}

template <class Run, bool kFp8X>
Status run_format(const LinearArgs& a, int tiles, const Params& p, const megamla_exec& exec) {
  switch (tiles) {
    case 1:
      return run_tiles<Run, kFp8X, 1>(a, p, exec);
    case 2:
      return run_tiles<Run, kFp8X, 2>(a, p, exec);
    case 4:
      return run_tiles<Run, kFp8X, 4>(a, p, exec);
    case 8:
      return run_tiles<Run, kFp8X, 8>(a, p, exec);
    default:
      if constexpr (std::is_same_v<Run, Fp8Run>) return run_tiles<Run, kFp8X, 16>(a, p, exec);
      return run_tiles<Run, kFp8X, 8>(a, p, exec);
  }
}

}  // namespace

Status block_scaled_linear(const Params& p, const megamla_exec& exec) {
  const plan::LinearShape s = plan::linear_shape(p);
  const LinearArgs a = args_of(p, s);
  const bool fp8_x = p.input != MEGAMLA_LINEAR_IN_BF16;
  if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
    const int tiles = token_tiles(s.tokens, kMostTokenTilesBf16);
    return fp8_x ? run_format<Bf16Run, true>(a, tiles, p, exec) : run_format<Bf16Run, false>(a, tiles, p, exec);
  }
  const int tiles = token_tiles(s.tokens, kMostTokenTiles);
  return fp8_x ? run_format<Fp8Run, true>(a, tiles, p, exec) : run_format<Fp8Run, false>(a, tiles, p, exec);
}

}  // namespace megamla::cuda
