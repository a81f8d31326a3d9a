#include "cpu/output_cast.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "cpu/cast_groups.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "plan/packed_scales.hpp"

namespace megamla::cpu {
namespace {

// Token t's heads 8g .. 8g+7.
template <class T>
void cast_head_group(const megamla_output_cast_params& p, int64_t t, int64_t g) {
  constexpr int64_t kChunks = format::kHeadDim / format::kOChunkDims;
  constexpr int64_t kChunkStride = format::o_chunked_index(0, format::kOChunkDims);
  uint8_t scales[format::kGroupChunks];
  for (int64_t h = 0; h < format::kGroupHeads; ++h) {
    uint8_t of_head[kChunks];
    cast_output_groups(&at<const T>(p.in, t, g * format::kGroupHeads + h), kChunks,
                       &at<uint8_t>(p.out, t, g) + format::o_chunked_index(h, 0), kChunkStride, of_head);
    for (int64_t c = 0; c < kChunks; ++c) scales[format::o_chunk(h, c * format::kOChunkDims)] = of_head[c];
  }
  for (int64_t w = 0; w < format::kGroupScaleWords; ++w) {
    at<int32_t>(p.out_scale, t, g, w) = plan::packed_word(scales, format::kGroupChunks, w);
  }
}

template <class T>
void cast_attention_output(const megamla_output_cast_params& p, int threads) {
  const int64_t groups = p.out.shape[1];
  parallel_ranges(p.out.shape[0] * groups, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) cast_head_group<T>(p, i / groups, i % groups);
  });
}

template <class T>
void cast_mxfp8_row(const megamla_output_cast_params& p, int64_t t) {
  constexpr int64_t kBlock = 64;  // groups whose scales wait to be put in their places
  const int64_t groups = p.out.shape[1] / format::kCastGroup;
  for (int64_t first = 0; first < groups; first += kBlock) {
    const int64_t count = std::min(kBlock, groups - first);
    uint8_t scales[kBlock];
    cast_mxfp8_groups(&at<const T>(p.in, t) + first * format::kCastGroup, count,
                      &at<uint8_t>(p.out, t) + first * format::kCastGroup, format::kCastGroup, scales);
    for (int64_t k = 0; k < count; ++k) {
      data<uint8_t>(p.out_scale)[format::f8_128x4_index(groups, t, first + k)] = scales[k];
    }
  }
}

template <class T>
void cast_mxfp8(const megamla_output_cast_params& p, int threads) {
  std::fill_n(data<uint8_t>(p.out_scale), p.out_scale.shape[0], uint8_t{0});
  parallel_ranges(p.out.shape[0], threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) cast_mxfp8_row<T>(p, t);
  });
}

template <class T>
void cast(const megamla_output_cast_params& p, int threads) {
  p.target == MEGAMLA_CAST_ATTENTION_OUTPUT ? cast_attention_output<T>(p, threads) : cast_mxfp8<T>(p, threads);
}

}  // namespace

Status output_cast(const megamla_output_cast_params& p, const megamla_exec& exec) {
  if (is_empty(p.out)) return {};
  const int threads = resolve_threads(exec.num_threads);
  p.in.dtype == MEGAMLA_F32 ? cast<float>(p, threads) : cast<format::Bf16>(p, threads);
  return {};
}

}  // namespace megamla::cpu
