#include "cpu/attention/output.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "cpu/cast_groups.hpp"
#include "cpu/rotate.hpp"
#include "cpu/widen.hpp"
#include "format/output_cast.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;

// A scale word holds bytes of four heads, and its neighbours in memory belong to other tokens: words are put together
// before they are stored.
void write_pair_group(const AttentionView& view, int64_t t, int64_t group, const float* o) {
  uint8_t* data = &at<uint8_t>(view.out, t, group);
  uint32_t words[format::kGroupScaleWords] = {};
  constexpr int64_t kGroups = kDims / format::kCastGroup;  // of one head
  for (int64_t lane_head = 0; lane_head < format::kGroupHeads; ++lane_head) {
    uint8_t scales[kGroups];
    constexpr int64_t kDataStride = format::o_chunked_index(0, format::kOChunkDims) - format::o_chunked_index(0, 0);
    cast_output_groups(o + lane_head * kDims, kGroups, data + format::o_chunked_index(lane_head, 0), kDataStride,
                       scales);
    for (int64_t c = 0; c < kGroups; ++c) {
      const format::PackedScale place = format::packed_scale(format::o_chunk(lane_head, c * format::kCastGroup));
      words[place.word] |= static_cast<uint32_t>(scales[c]) << place.shift;
    }
  }
  for (int64_t w = 0; w < format::kGroupScaleWords; ++w) at<uint32_t>(view.out_scale, t, group, w) = words[w];
}

// o [live heads, 512] in standard order.
void write_values(const AttentionView& view, int64_t t, const float* o) {
  if (view.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    for (int64_t group = 0; group < view.live_heads / format::kGroupHeads; ++group) {
      write_pair_group(view, t, group, o + group * format::kGroupHeads * kDims);
    }
    return;
  }
  for (int64_t head = 0; head < view.live_heads; ++head) {
    if (view.output == MEGAMLA_OUTPUT_BF16) {
      narrow_to_bf16(o + head * kDims, kDims, &at<format::Bf16>(view.out, t, head));
    } else {
      std::memcpy(&at<float>(view.out, t, head), o + head * kDims, kDims * sizeof(float));
    }
  }
}

void write_sums(const AttentionView& view, int64_t t, int64_t head, float lse, float max_logit) {
  if (present(view.lse)) at<float>(view.lse, t, head) = lse;
  if (present(view.max_logits)) at<float>(view.max_logits, t, head) = max_logit;
}

void write_zero_group(const AttentionView& view, int64_t t, int64_t group) {
  std::memset(&at<uint8_t>(view.out, t, group), 0, format::kGroupWidth);
  for (int64_t w = 0; w < format::kGroupScaleWords; ++w) {
    at<uint32_t>(view.out_scale, t, group, w) = format::kZeroGroupScale * 0x01010101U;
  }
}

}  // namespace

void write_row(const AttentionView& view, int64_t t, const float* cos_sin, const Partial& partial) {
  for (int64_t head = 0; head < view.live_heads; ++head) {
    const double shift = partial.shift[head];
    const double sum = partial.sum[head];
    const float sink =
        present(view.attn_sink) ? at<const float>(view.attn_sink, head) : -std::numeric_limits<float>::infinity();
    const double denominator = sum + std::exp2(static_cast<double>(sink) * std::numbers::log2e - shift);
    float* o = partial.out + head * kDims;
    if (denominator == 0 || sink == std::numeric_limits<float>::infinity() || std::isinf(denominator)) {
      std::memset(o, 0, kDims * sizeof(float));
    } else {
      scale_row(static_cast<float>(1 / denominator), kDims, o);
      if (cos_sin != nullptr) rotate_rope_back(cos_sin, o + format::kNopeDim);
    }
    write_sums(view, t, head, static_cast<float>((shift + std::log2(sum)) * std::numbers::ln2),
               static_cast<float>(static_cast<double>(partial.largest[head]) * std::numbers::ln2));
  }
  write_values(view, t, partial.out);
}

void write_zero_row(const AttentionView& view, int64_t t, float lse, float max_logit) {
  for (int64_t head = 0; head < view.live_heads; ++head) {
    if (view.output != MEGAMLA_OUTPUT_FP8_PAIR) {
      const auto element = static_cast<size_t>(megamla_dtype_size(static_cast<megamla_dtype>(view.out.dtype)));
      std::memset(&at<uint8_t>(view.out, 0) +
                      (t * view.out.stride[0] + head * view.out.stride[1]) * static_cast<int64_t>(element),
                  0, kDims * element);
    } else if (head % format::kGroupHeads == 0) {
      write_zero_group(view, t, head / format::kGroupHeads);
    }
    write_sums(view, t, head, lse, max_logit);
  }
}

}  // namespace megamla::cpu::attention
