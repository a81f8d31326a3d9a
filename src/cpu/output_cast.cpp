#include "cpu/output_cast.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "plan/cast_rows.hpp"

namespace megamla::cpu {
namespace {

float load(float x) { return x; }
float load(format::Bf16 x) { return format::to_float(x); }

template <class T>
void cast_attention_output(const megamla_output_cast_params& p, int threads) {
  constexpr int64_t kDims = format::kHeadDim;
  const int64_t groups = p.out.shape[1];
  parallel_ranges(p.out.shape[0] * groups, threads, [&](int64_t begin, int64_t end, int) {
    alignas(64) float o[format::kGroupHeads * kDims];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / groups;
      const int64_t g = i % groups;
      for (int64_t h = 0; h < format::kGroupHeads; ++h) {
        const T* x = &at<const T>(p.in, t, g * format::kGroupHeads + h);
        for (int64_t d = 0; d < kDims; ++d) o[h * kDims + d] = load(x[d]);
      }
      plan::cast_output_heads(o, &at<uint8_t>(p.out, t, g), &at<int32_t>(p.out_scale, t, g), p.out_scale.stride[2]);
    }
  });
}

template <class T>
void cast_mxfp8(const megamla_output_cast_params& p, int threads) {
  std::fill_n(data<uint8_t>(p.out_scale), p.out_scale.shape[0], uint8_t{0});
  parallel_ranges(p.out.shape[0], threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const T* x = &at<const T>(p.in, t);
      plan::cast_mxfp8_row([&](int64_t i) { return load(x[i]); }, t, p.out.shape[1], &at<uint8_t>(p.out, t),
                           data<uint8_t>(p.out_scale));
    }
  });
}

template <class T>
void cast(const megamla_output_cast_params& p, int threads) {
  p.target == MEGAMLA_CAST_ATTENTION_OUTPUT ? cast_attention_output<T>(p, threads) : cast_mxfp8<T>(p, threads);
}

}  // namespace

Status output_cast(const megamla_output_cast_params& p, const megamla_exec& exec) {
  const int threads = resolve_threads(exec.num_threads);
  p.in.dtype == MEGAMLA_F32 ? cast<float>(p, threads) : cast<format::Bf16>(p, threads);
  return {};
}

}  // namespace megamla::cpu
