#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/tensor.hpp"
#include "cuda/block_scaled_linear/block_scaled_linear.hpp"
#include "cuda/block_scaled_linear/e4m3_kernel.cuh"
#include "cuda/block_scaled_linear/few_tokens_launch.cuh"
#include "cuda/block_scaled_linear/linear_kernel.cuh"
#include "cuda/block_scaled_linear/tile_plan.hpp"
#include "cuda/block_scaled_linear/tuning.hpp"
#include "cuda/launch.hpp"
#include "plan/linear_shape.hpp"

namespace megamla::cuda {
namespace {

using Params = megamla_block_scaled_linear_params;
using namespace linear;

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
  a.x_aligned = is_aligned(p.x, p.input == MEGAMLA_LINEAR_IN_BF16 ? 2 : 1, 16);
  a.x_scale = p.x_scale.data;
  a.x_scale_packed = p.input == MEGAMLA_LINEAR_IN_FP8_PAIR;
  a.x_scale_token = p.x_scale.stride[0];
  a.x_scale_group = p.x_scale.stride[1];
  a.x_scale_word = p.x_scale.stride[2];
  a.weight = p.weight.data;
  a.weight_scale = data<const uint8_t>(p.weight_scale);
  a.weight_scale_aligned = reinterpret_cast<uintptr_t>(p.weight_scale.data) % 4 == 0 && s.in % 128 == 0;
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

struct Variant {
  Kernel kernel = nullptr;
  int threads = 0;
  size_t shared_bytes = 0;
  Tile tile{};          // on this device
  bool general = true;  // false: only_copies, bf16 y
};

template <class Shape, bool kFp8X>
Variant variant() {
  return {linear_kernel<Shape, kFp8X>,
          Shape::kThreads,
          Shape::kSharedBytes,
          {Shape::kRows, Shape::kTokens, Shape::kBlocksPerSm, {}},
          Shape::kWarpgroups == 2};
}

// Fewest tokens first.
template <bool kFp8X>
std::vector<Variant> variants(int weight_bytes) {
  if (weight_bytes == 2)
    return {variant<TileShape<8, 2, 2>, kFp8X>(), variant<TileShape<32, 2, 2>, kFp8X>(),
            variant<TileShape<128, 2, 2>, kFp8X>()};
  std::vector<Variant> list = {variant<TileShape<8, 2, 1>, kFp8X>(), variant<TileShape<16, 2, 1>, kFp8X>(),
                               variant<TileShape<32, 2, 1>, kFp8X>(), variant<TileShape<64, 2, 1>, kFp8X>(),
                               variant<TileShape<128, 2, 1>, kFp8X>()};
  if constexpr (!kFp8X) list.push_back(variant<TileShape<128, 4, 1>, false>());
  return list;
}

// Those of the kernel that multiplies codes.
template <class Shape>
Variant codes_variant() {
  return {e4m3_kernel<Shape>,
          Shape::kThreads,
          Shape::kSharedBytes,
          {Shape::kRows, Shape::kTokens, Shape::kBlocksPerSm, {}}};
}
std::vector<Variant> codes_variants() { return {codes_variant<E4m3Shape<1>>(), codes_variant<E4m3Shape<2>>()}; }

LaunchShape shape_of(const Variant& v, int64_t clusters, int splits) {
  LaunchShape shape = overlapping({clusters * splits, v.threads, v.shared_bytes});
  shape.cluster = splits;
  return shape;
}

// Lets a kernel have its shared memory, and asks how many clusters of it the device holds.
cudaError_t prepare(Variant& v, int multiprocessors) {
  cudaError_t error =
      cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(v.shared_bytes));
  v.tile.clusters[1] = multiprocessors * v.tile.blocks_per_sm;
  for (int splits = 2; splits <= kMaxSplits && error == cudaSuccess; ++splits) {
    error = most_clusters(shape_of(v, 1, splits), v.kernel, &v.tile.clusters[static_cast<size_t>(splits)]);
  }
  return error;
}

// Asked once for each device: the answers do not change, and each call would wait for them.
constexpr int kCodes = 0;  // in place of weight_bytes: codes_variants
Status prepared_variants(int32_t device, bool fp8_x, int weight_bytes, const std::vector<Variant>** found) {
  static std::mutex mutex;
  static std::map<std::tuple<int32_t, bool, int>, std::vector<Variant>> known;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(device, fp8_x, weight_bytes);
  if (known.find(key) == known.end()) {
    std::vector<Variant> list = weight_bytes == kCodes ? codes_variants()
                                : fp8_x                ? variants<true>(weight_bytes)
                                                       : variants<false>(weight_bytes);
    for (Variant& v : list) MEGAMLA_CUDA_CALL(kOp, prepare(v, multiprocessors(device)));
    known[key] = std::move(list);
  }
  *found = &known[key];
  return {};
}

// What the kernel that multiplies codes asks for beyond FP8 on both sides: whole words of scales, copies of 16 bytes, a
// result that is rounded to bf16 at least. The tensor cores add products of codes to 14 bits or so: on an H200 some
// sums were off by 1.4e-3 of the root mean square of all, where fp32 results are held to 1e-3. Its sums depend on no
// other token, but differ from those of the other kernel.
bool multiplies_codes(const Params& p, const LinearArgs& a) {
  static const bool off = switched_off("MEGAMLA_LINEAR_E4M3");
  if (off) return false;
  const auto word_aligned = [](const megamla_tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 4 == 0; };
  return p.input != MEGAMLA_LINEAR_IN_BF16 && p.weight_kind != MEGAMLA_LINEAR_WEIGHT_BF16 &&
         p.output != MEGAMLA_LINEAR_OUT_F32 && p.batch_invariant == 0 && a.in % E4m3Shape<1>::kColumns == 0 &&
         a.x_aligned && a.weight_scale_aligned && word_aligned(p.x_scale);
}

struct Choice {
  const Variant* variant;
  int splits;
};

// The smallest tile that holds all tokens, else the largest; of several with as many tokens the one that is faster.
Choice choose(const std::vector<Variant>& list, const TileWork& work, bool general, bool batch_invariant) {
  // Batch-invariant: the order of a row's sum, which the splits decide, must not follow from the number of tokens.
  TileWork one_token = work;
  one_token.tokens = 1;
  const int fixed = batch_invariant ? best_splits(one_token, list.front().tile) : 0;
  Choice best{};
  for (const Variant& v : list) {
    if (const int rows = tuned("LIN_ROWS", 0); rows != 0 && work.tokens > 64 && v.tile.rows != rows) continue;
    if (general && !v.general) continue;
    if (v.tile.tokens < work.tokens && v.tile.tokens < list.back().tile.tokens) continue;
    if (best.variant != nullptr && v.tile.tokens > best.variant->tile.tokens) break;
    const int splits = batch_invariant ? fixed : best_splits(work, v.tile);
    const bool needed = best.variant == nullptr && v.tile.tokens == list.back().tile.tokens;
    if (v.tile.clusters[static_cast<size_t>(splits)] == 0 && !needed) continue;
    if (best.variant == nullptr ||
        estimated_clocks(work, v.tile, splits) < estimated_clocks(work, best.variant->tile, best.splits)) {
      best = {&v, splits};
    }
  }
  return best;
}

Choice choose_codes(const std::vector<Variant>& list, const TileWork& work) {
  const int64_t pieces = ceil_div(work.in, kSplitColumns);
  Choice best{};
  int64_t least = 0;
  for (const Variant& v : list) {
    if (const int tokens = tuned("LIN_CODE_TOKENS", 0); tokens != 0 && v.tile.tokens != tokens) continue;
    for (int splits = 1; splits <= std::min<int64_t>(pieces, kMaxSplits); ++splits) {
      if (v.tile.clusters[static_cast<size_t>(splits)] == 0) continue;
      const int64_t clocks = e4m3_clocks(work, v.tile, splits);
      if (best.variant != nullptr && clocks >= least) continue;
      best = {&v, splits};
      least = clocks;
    }
  }
  return best;
}

Status launch_tiles(LinearArgs a, Choice choice, cudaStream_t stream) {
  choice.splits = tuned("LIN_SPLITS", choice.splits);
  set_tiles(a, choice.variant->tile.rows, choice.variant->tile.tokens);
  a.splits = static_cast<uint32_t>(choice.splits);
  // Blocks that share no tile walk over many; clusters take one each.
  int64_t clusters = int64_t{a.row_tiles} * a.token_tiles;
  if (choice.splits == 1) clusters = std::min<int64_t>(clusters, choice.variant->tile.clusters[1]);
  LaunchShape shape = shape_of(*choice.variant, clusters, choice.splits);
  if (a.token_tiles == 1) {
    const int64_t values = a.groups * a.in * a.out;
    shape.read_once = a.weight;
    shape.read_once_bytes = static_cast<size_t>(a.weight_scale == nullptr ? 2 * values : values);
  }
  return launch(kOp, shape, stream, choice.variant->kernel, a);
}

}  // namespace

Status block_scaled_linear(const Params& p, const megamla_exec& exec) {
  const plan::LinearShape s = plan::linear_shape(p);
  if (s.tokens == 0) return {};
  LinearArgs a = args_of(p, s);
  const bool fp8_x = p.input != MEGAMLA_LINEAR_IN_BF16;
  const FewTokensChoice few = choose_few_tokens(p, a, multiprocessors(p.x.cuda_device));
  if (few.variant != nullptr && tuned("LIN_FEW", 1) != 0) return launch_few_tokens(a, few, exec.stream);
  const bool codes = multiplies_codes(p, a);
  const int weight_bytes = codes ? kCodes : p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16 ? 2 : 1;
  const std::vector<Variant>* list = nullptr;
  MEGAMLA_RETURN_IF_ERROR(prepared_variants(p.x.cuda_device, fp8_x, weight_bytes, &list));
  const TileWork work{s.tokens, s.groups, s.in, s.out, weight_bytes, fp8_x ? 1 : 2};
  const bool general = p.output != MEGAMLA_LINEAR_OUT_BF16 || !only_copies(a);
  const Choice choice = codes ? choose_codes(*list, work) : choose(*list, work, general, p.batch_invariant != 0);
  return launch_tiles(a, choice, exec.stream);
}

}  // namespace megamla::cuda
