// A thread computes one cosine and one sine. Double precision, rounded once: a value may differ from the CPU's in its
// last bit where the two mathematical libraries do.
#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/launch.hpp"
#include "cuda/rope_table.hpp"
#include "plan/rope.hpp"

namespace megamla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFrequencies = 32;

struct RopeArgs {
  double inv_freq[kFrequencies];
  bool fp32_angles;
  const int64_t* positions;  // null: row r is position r
  int64_t positions_stride;
  float* cos_sin;
  int64_t stride, rows;
};

__global__ void __launch_bounds__(kThreads) rope_rows(const RopeArgs a) {
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.rows * kFrequencies; i += threads) {
    const int64_t row = i / kFrequencies;
    const int j = static_cast<int>(i % kFrequencies);
    const int64_t position = a.positions == nullptr ? row : a.positions[row * a.positions_stride];
    double angle = static_cast<double>(position) * a.inv_freq[j];
    if (a.fp32_angles) angle = static_cast<float>(position) * static_cast<float>(a.inv_freq[j]);
    double sine = 0;
    double cosine = 0;
    sincos(angle, &sine, &cosine);
    float* to = a.cos_sin + row * a.stride + j;
    to[0] = static_cast<float>(cosine);
    to[kFrequencies] = static_cast<float>(sine);
  }
}

}  // namespace

Status rope_table(const megamla_rope_table_params& p, const megamla_exec& exec) {
  const auto inv_freq = plan::rope_inverse_frequencies(p);
  RopeArgs a{};
  std::copy(inv_freq.begin(), inv_freq.end(), a.inv_freq);
  a.fp32_angles = p.angles == MEGAMLA_ROPE_FP32;
  a.positions = present(p.positions) ? data<const int64_t>(p.positions) : nullptr;
  a.positions_stride = p.positions.stride[0];
  a.cos_sin = data<float>(p.cos_sin);
  a.stride = p.cos_sin.stride[0];
  a.rows = p.cos_sin.shape[0];
  const int64_t blocks = (a.rows * kFrequencies + kThreads - 1) / kThreads;
  MEGAMLA_RETURN_IF_ERROR(launch("rope_table",
                                 {std::min<int64_t>(blocks, 64 * multiprocessors(p.cos_sin.cuda_device)), kThreads},
                                 exec.stream, rope_rows, a));
  // The caller's list of frequencies is in host memory.
  if (present(p.inv_freq)) {
    for (int64_t j = 0; j < kFrequencies; ++j) at<double>(p.inv_freq, j) = a.inv_freq[j];
  }
  return {};
}

}  // namespace megamla::cuda
