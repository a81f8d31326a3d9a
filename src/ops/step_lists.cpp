#include "ops/step_lists.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "cuda/step_lists.hpp"
#include "plan/step_lists.hpp"
#if MEGAMLA_HAVE_CUDA
#include "cuda/launch.hpp"
#endif

namespace megamla::ops {
namespace {

#if MEGAMLA_HAVE_CUDA
template <class Run>
Status on_gpu(int32_t device, Run&& run) {
  const cuda::DeviceGuard current("layer", device);
  MEGAMLA_RETURN_IF_ERROR(current.status());
  return run();
}
#endif

}  // namespace

Status builtin_topk(const megamla_tensor& positions, int64_t compress_ratio, const megamla_tensor& topk,
                    [[maybe_unused]] const megamla_exec& exec) {
#if MEGAMLA_HAVE_CUDA
  if (topk.cuda_device >= 0) {
    return on_gpu(topk.cuda_device, [&] { return cuda::builtin_topk(positions, compress_ratio, topk, exec.stream); });
  }
#endif
  for (int64_t t = 0; t < topk.shape[0]; ++t) {
    const int64_t keys = plan::compressed_keys(index_at(positions, t), compress_ratio);
    for (int64_t k = 0; k < topk.shape[1]; ++k)
      at<int32_t>(topk, t, k) = plan::builtin_topk_column(keys, topk.shape[1], k);
  }
  return {};
}

Status gathered_lens(const GatheredLensParams& p, [[maybe_unused]] const megamla_exec& exec) {
  const plan::RaggedBatch batch{data<const int32_t>(p.query_start_loc), data<const int32_t>(p.seq_lens),
                                p.seq_lens.shape[0]};
  auto* window = data<int32_t>(p.window_lens);
  auto* compressed = p.compress_ratio > 0 ? data<int32_t>(p.compressed_lens) : nullptr;
#if MEGAMLA_HAVE_CUDA
  if (p.seq_lens.cuda_device >= 0) {
    return on_gpu(p.seq_lens.cuda_device, [&] {
      return cuda::gathered_lens(batch, p.window, p.compress_ratio, window, compressed, exec.stream);
    });
  }
#endif
  for (int64_t r = 0; r < batch.num_requests; ++r) {
    const plan::GatheredLens lens = plan::gathered_lens(batch, r, p.window, p.compress_ratio);
    window[r] = lens.window;
    if (compressed != nullptr) compressed[r] = lens.compressed;
  }
  return {};
}

Status fill_f32(const megamla_tensor& t, float value, [[maybe_unused]] const megamla_exec& exec) {
  if (is_empty(t)) return {};
#if MEGAMLA_HAVE_CUDA
  if (t.cuda_device >= 0) return on_gpu(t.cuda_device, [&] { return cuda::fill_f32(t, value, exec.stream); });
#endif
  for (int64_t row = 0; row < t.shape[0]; ++row) std::fill_n(&at<float>(t, row, 0), t.shape[1], value);
  return {};
}

}  // namespace megamla::ops
