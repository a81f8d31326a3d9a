// The compressor. Ratio 1 is rms_norm. Ratio 2: a warp pools and normalises a token, and a second launch stores the
// rows of the state, since a token may read the row of an earlier call that another token of this call takes over.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/kv_compress.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/grid.cuh"
#include "cuda/rms_norm.hpp"
#include "cuda/row_norm.cuh"
#include "cuda/vector_access.cuh"
#include "plan/compress_rows.hpp"

namespace megamla::cuda {
namespace {

using plan::kPooledWidth;
using plan::kStateWidth;

constexpr int kWarps = 4;  // of a block
constexpr int kLanes = 32;
constexpr int kRun = 4;  // neighbouring dims of a lane
constexpr int kRuns = kPooledWidth / (kLanes * kRun);
constexpr unsigned kFullWarp = 0xffffffffU;

struct CompressArgs {
  const float* kv_score;
  int64_t score_stride;
  bool score_aligned;
  const format::Bf16* weight;
  float eps;
  int64_t tokens;
  const int32_t* token_to_req;
  IndexList positions;
  const int32_t* state_block;
  int64_t requests;
  float* state;
  bool state_aligned;
  int64_t blocks, capacity;
  format::Bf16* latent;
  int64_t latent_stride;
  uint8_t* written;  // null: not wanted
};

// plan::state_rows on this memory.
__device__ plan::StateRows state_rows(const CompressArgs& a, int64_t token) {
  const int64_t request = __ldg(a.token_to_req + token);
  const int64_t block = request >= 0 && request < a.requests ? __ldg(a.state_block + request) : 0;
  return plan::state_rows_of(block, a.positions[token], a.blocks, a.capacity);
}

// The nearest token before `token` (step -1) or behind it (step 1), of the same request, that is stored in state row
// `row`; -1: none in this call. A warp looks at 32 tokens at a time.
__device__ int64_t find_token(const CompressArgs& a, int64_t token, int64_t step, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int32_t request = __ldg(a.token_to_req + token);
  for (int64_t begin = token + step; begin >= 0 && begin < a.tokens; begin += step * kLanes) {
    const int64_t candidate = begin + step * lane;
    bool found = candidate >= 0 && candidate < a.tokens && __ldg(a.token_to_req + candidate) == request;
    if (found) found = state_rows(a, candidate).own == row;
    const unsigned hits = __ballot_sync(kFullWarp, found);
    if (hits != 0) return begin + step * (__ffs(hits) - 1);
  }
  return -1;
}

__device__ void load_dims(const CompressArgs& a, const float* row, int run, float (&x)[kRun], bool aligned) {
  uint32_t words[kRun];
  load_run<4 * kRun>(row + (run * kLanes + threadIdx.x % kLanes) * kRun, aligned, words);
#pragma unroll
  for (int i = 0; i < kRun; ++i) x[i] = __uint_as_float(words[i]);
}

// The softmax over a dim's two scores weights its two values.
__device__ float pool(float first, float second, float first_score, float second_score) {
  const double difference = static_cast<double>(second_score) - first_score;
  const double smaller = exp(-fabs(difference));  // of the two weights, relative to the larger
  const double larger_weight = 1 / (1 + smaller);
  const double smaller_weight = smaller / (1 + smaller);
  const double second_weight = difference >= 0 ? larger_weight : smaller_weight;
  const double first_weight = difference >= 0 ? smaller_weight : larger_weight;
  return static_cast<float>(first * first_weight + second * second_weight);
}

// RMSNorm of the warp's pooled row into latent row `token`.
__device__ void store_latent(const CompressArgs& a, int64_t token, const float (&pooled)[kRuns][kRun]) {
  double squares = 0;
#pragma unroll
  for (const auto& run : pooled) {
#pragma unroll
    for (const float x : run) squares += static_cast<double>(x) * x;
  }
  const double factor = norm_factor(warp_sum(squares), 1.0 / kPooledWidth, a.eps);
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    const int dim = (run * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kRun;
    format::Bf16* to = a.latent + token * a.latent_stride + dim;
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      to[i] = format::to_bf16(normalised(pooled[run][i], factor, to_float(a.weight[dim + i])));
  }
}

__global__ void __launch_bounds__(kWarps* kLanes) compress_tokens(const CompressArgs a) {
  ptx::follow_previous();
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; token < a.tokens; token += warps) {
    const plan::StateRows rows = state_rows(a, token);
    if (a.written != nullptr && threadIdx.x % kLanes == 0) a.written[token] = rows.partner >= 0 ? 1 : 0;
    if (rows.partner < 0) continue;
    const int64_t before = find_token(a, token, -1, rows.partner);
    const float* own = a.kv_score + token * a.score_stride;
    const float* partner = before >= 0 ? a.kv_score + before * a.score_stride : a.state + rows.partner * kStateWidth;
    const bool partner_aligned = before >= 0 ? a.score_aligned : a.state_aligned;
    float pooled[kRuns][kRun];
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      float first[kRun];
      float first_score[kRun];
      float second[kRun];
      float second_score[kRun];
      load_dims(a, partner, run, first, partner_aligned);
      load_dims(a, partner + kPooledWidth, run, first_score, partner_aligned);
      load_dims(a, own, run, second, a.score_aligned);
      load_dims(a, own + kPooledWidth, run, second_score, a.score_aligned);
#pragma unroll
      for (int i = 0; i < kRun; ++i) pooled[run][i] = pool(first[i], second[i], first_score[i], second_score[i]);
    }
    store_latent(a, token, pooled);
  }
}

// Of the tokens of a call that take one state row, the last one stays.
__global__ void __launch_bounds__(kWarps* kLanes) store_tokens(const CompressArgs a) {
  ptx::follow_previous();
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; token < a.tokens; token += warps) {
    const int64_t row = state_rows(a, token).own;
    if (row < 0 || find_token(a, token, 1, row) >= 0) continue;
    const float* from = a.kv_score + token * a.score_stride;
    float* to = a.state + row * kStateWidth;
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x) % kLanes; i < kStateWidth; i += kLanes) to[i] = __ldg(from + i);
  }
}

}  // namespace

Status kv_compress(const megamla_kv_compress_params& p, const megamla_exec& exec) {
  uint8_t* written = present(p.written) ? data<uint8_t>(p.written) : nullptr;
  if (p.compress_ratio == 1) {
    megamla_rms_norm_params norm{};
    norm.eps = p.eps;
    norm.x = p.kv_score;
    norm.weight = p.weight;
    norm.y = p.latent;
    return normalise_rows("kv_compress", norm, written, exec.stream);
  }
  CompressArgs a{};
  a.kv_score = data<const float>(p.kv_score);
  a.score_stride = p.kv_score.stride[0];
  a.score_aligned = rows_aligned(a.kv_score, 4 * a.score_stride);
  a.weight = data<const format::Bf16>(p.weight);
  a.eps = p.eps;
  a.tokens = p.kv_score.shape[0];
  a.latent = data<format::Bf16>(p.latent);
  a.latent_stride = p.latent.stride[0];
  a.written = written;
  const int64_t blocks = (a.tokens + kWarps - 1) / kWarps;
  const LaunchShape shape =
      overlapping({std::min<int64_t>(blocks, 64 * multiprocessors(p.kv_score.cuda_device)), kWarps * kLanes});
  a.token_to_req = data<const int32_t>(p.token_to_req);
  a.positions = {p.positions.data, p.positions.dtype == MEGAMLA_I64};
  a.state_block = data<const int32_t>(p.state_block);
  a.requests = p.state_block.shape[0];
  a.state = data<float>(p.state);
  a.state_aligned = rows_aligned(a.state, 0);
  a.blocks = p.state.shape[0];
  a.capacity = p.state.shape[1];
  MEGAMLA_RETURN_IF_ERROR(launch("kv_compress", shape, exec.stream, compress_tokens, a));
  return launch("kv_compress", shape, exec.stream, store_tokens, a);
}

}  // namespace megamla::cuda
