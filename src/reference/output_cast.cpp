#include "reference/output_cast.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "plan/cast_rows.hpp"

namespace megamla::reference {
namespace {

float load(const megamla_tensor& t, int64_t offset) {
  return t.dtype == MEGAMLA_F32 ? data<const float>(t)[offset] : to_float(data<const format::Bf16>(t)[offset]);
}

void cast_attention_output(const megamla_output_cast_params& p) {
  constexpr int64_t kHeads = format::kGroupHeads;
  constexpr int64_t kDims = format::kHeadDim;
  for (int64_t t = 0; t < p.out.shape[0]; ++t) {
    for (int64_t g = 0; g < p.out.shape[1]; ++g) {
      float o[kHeads * kDims];
      for (int64_t i = 0; i < kHeads * kDims; ++i) {
        const int64_t head = g * kHeads + i / kDims;
        o[i] = load(p.in, t * p.in.stride[0] + head * p.in.stride[1] + i % kDims);
      }
      plan::cast_output_heads(o, &at<uint8_t>(p.out, t, g), &at<int32_t>(p.out_scale, t, g), p.out_scale.stride[2]);
    }
  }
}

void cast_mxfp8(const megamla_output_cast_params& p) {
  std::fill_n(data<uint8_t>(p.out_scale), p.out_scale.shape[0], uint8_t{0});
  for (int64_t t = 0; t < p.out.shape[0]; ++t) {
    const auto value = [&](int64_t i) { return load(p.in, t * p.in.stride[0] + i); };
    plan::cast_mxfp8_row(value, t, p.out.shape[1], &at<uint8_t>(p.out, t), data<uint8_t>(p.out_scale));
  }
}

}  // namespace

Status output_cast(const megamla_output_cast_params& p, const megamla_exec&) {
  if (is_empty(p.out)) return {};
  p.target == MEGAMLA_CAST_ATTENTION_OUTPUT ? cast_attention_output(p) : cast_mxfp8(p);
  return {};
}

}  // namespace megamla::reference
