#include "reference/attention_output.hpp"

#include "format/output_cast.hpp"

namespace megamla::reference {
namespace {

void write_pair(const AttentionView& view, int64_t t, int64_t head, const double* o) {
  const int64_t group = head / format::kGroupHeads;
  const int64_t lane_head = head % format::kGroupHeads;
  for (int64_t d = 0; d < format::kHeadDim; d += format::kCastGroup) {
    float values[format::kCastGroup];
    for (int i = 0; i < format::kCastGroup; ++i) values[i] = static_cast<float>(o[d + i]);
    uint8_t* data = &at<uint8_t>(view.out, t, group, format::o_chunked_index(lane_head, d));
    const uint32_t scale = format::cast_output_group(values, data);
    const format::PackedScale place = format::packed_scale(format::o_chunk(lane_head, d));
    uint32_t& word = at<uint32_t>(view.out_scale, t, group, place.word);
    word = (word & ~(0xffU << place.shift)) | (scale << place.shift);
  }
}

}  // namespace

void write_head(const AttentionView& view, int64_t t, int64_t head, const double* o) {
  switch (view.output) {
    case MEGAMLA_OUTPUT_FP8_PAIR:
      write_pair(view, t, head, o);
      break;
    case MEGAMLA_OUTPUT_BF16:
      for (int64_t d = 0; d < format::kHeadDim; ++d) {
        at<format::Bf16>(view.out, t, head, d) = format::to_bf16(static_cast<float>(o[d]));
      }
      break;
    case MEGAMLA_OUTPUT_F32:
      for (int64_t d = 0; d < format::kHeadDim; ++d) at<float>(view.out, t, head, d) = static_cast<float>(o[d]);
      break;
  }
}

}  // namespace megamla::reference
