#include "cuda/decode_attention/decode_attention.hpp"

#include <algorithm>
#include <cmath>

#include "core/tensor.hpp"
#include "cuda/decode_attention/kernel.hpp"
#include "cuda/launch.hpp"
#include "format/chunked.hpp"
#include "format/page.hpp"

namespace megamla::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896F;

// multiplier < 2^32 and shift with floor(n / d) = n * multiplier >> shift for every n < 2^31: the multiplier exceeds
// 2^shift / d by less than 1, and 2^shift >= 2^31 d.
PageDivision division_by(uint32_t d) {
  uint32_t log = 0;
  while ((uint64_t{1} << log) < d) ++log;
  const uint32_t shift = 31 + log;
  return {static_cast<uint32_t>(((uint64_t{1} << shift) + d - 1) / d), shift};
}

DecodeKeys keys_of(const megamla_kv_cache& cache, const megamla_tensor& slots, const megamla_tensor& lens) {
  DecodeKeys keys{};
  if (!present(cache)) return keys;
  const format::PageGeometry page = format::page_geometry(cache);
  keys.cache = static_cast<const uint8_t*>(cache.data);
  // Slot ids are int32, none is larger.
  keys.num_slots = static_cast<uint32_t>(std::min<int64_t>(format::num_slots(cache), int64_t{INT32_MAX} + 1));
  keys.page_size = static_cast<uint32_t>(std::min<int64_t>(cache.page_size, int64_t{INT32_MAX} + 1));
  keys.division = division_by(keys.page_size);
  keys.page_stride = cache.page_stride;
  keys.scale_begin = page.scale_begin;
  keys.data_step = static_cast<int32_t>(page.data_step);
  keys.scale_step = static_cast<int32_t>(page.scale_step);
  keys.slots = data<const int32_t>(slots);
  keys.slots_row_stride = slots.stride[0];
  keys.slots_column_stride = slots.stride[1];
  keys.width = static_cast<int32_t>(slots.shape[1]);
  if (present(lens)) {
    keys.lens = data<const int32_t>(lens);
    keys.lens_stride = lens.stride[0];
  }
  return keys;
}

void set_query(DecodeParams& d, const megamla_decode_attention_params& p) {
  d.q = data<const uint16_t>(p.q);
  d.q_token_stride = p.q.stride[0];
  d.q_chunked = p.q_layout == MEGAMLA_Q_CHUNKED;
  d.q_head_stride = d.q_chunked != 0 ? format::kQChunkDims : p.q.stride[1];
  d.q_chunk_stride =
      d.q_chunked != 0 ? format::q_chunked_index(p.q.shape[1], 0, format::kQChunkDims) : format::kQChunkDims;
  d.q_norm = p.q_norm;
  d.q_norm_eps = p.q_norm_eps;
  // Not 0: masked logits are -infinity before they are scaled.
  d.logit_scale = std::max(std::abs(p.softmax_scale) * kLog2E * kKeyUnshift, 1e-30F);
  d.q_negative = p.softmax_scale < 0;
  d.heads = static_cast<int32_t>(p.q.shape[1]);
  d.live_heads = p.live_heads == 0 ? d.heads : static_cast<int32_t>(p.live_heads);
  d.head_tiles_log = d.live_heads > kTileHeads ? 1 : 0;  // at most 128 heads
  d.items = static_cast<uint32_t>(p.q.shape[0] << d.head_tiles_log);
  if (!present(p.cos_sin)) return;
  d.positions = p.positions.data;
  d.positions_stride = p.positions.stride[0];
  d.positions_64 = p.positions.dtype == MEGAMLA_I64;
  d.cos_sin = data<const float>(p.cos_sin);
  d.cos_sin_rows = p.cos_sin.shape[0];
  d.cos_sin_stride = p.cos_sin.stride[0];
}

void set_output(DecodeParams& d, const megamla_decode_attention_params& p) {
  d.output = p.output;
  d.out = p.out.data;
  d.out_token_stride = p.out.stride[0];
  d.out_head_stride = p.out.stride[1];
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    d.out_scale = data<int32_t>(p.out_scale);
    d.scale_group_stride = p.out_scale.stride[1];
    d.scale_word_stride = p.out_scale.stride[2];
  }
  if (present(p.attn_sink)) {
    d.sink = data<const float>(p.attn_sink);
    d.sink_stride = p.attn_sink.stride[0];
  }
  if (present(p.lse)) {
    d.lse = data<float>(p.lse);
    d.lse_token_stride = p.lse.stride[0];
    d.lse_head_stride = p.lse.stride[1];
  }
}

// Data and the strides of every dimension but the last, in bytes.
Status expect_aligned(const char* argument, const megamla_tensor& t, int64_t bytes) {
  const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0;
  for (int d = 0; d + 1 < t.ndim; ++d) aligned = aligned && t.stride[d] * size % bytes == 0;
  if (aligned) return {};
  return unsupported(
      "decode_attention: {}: expected data and strides in multiples of {} bytes, got {} and strides of {}, {} elements",
      argument, bytes, t.data, t.stride[0], t.stride[1]);
}

}  // namespace

Status decode_attention_supports(const megamla_decode_attention_params& p) {
  MEGAMLA_RETURN_IF_ERROR(expect_aligned("q", p.q, 16));
  if (present(p.cos_sin)) MEGAMLA_RETURN_IF_ERROR(expect_aligned("cos_sin", p.cos_sin, 16));
  return expect_aligned("out", p.out, p.output == MEGAMLA_OUTPUT_BF16 ? 4 : 8);
}

Status decode_attention(const megamla_decode_attention_params& p, const megamla_exec& exec) {
  DecodeParams d{};
  set_query(d, p);
  set_output(d, p);
  if (d.items == 0) return {};
  d.keys[0] = keys_of(p.window, p.window_slots, p.window_lens);
  d.keys[1] = keys_of(p.compressed, p.compressed_slots, p.compressed_lens);
  const auto window = static_cast<megamla_kv_format>(p.window.format);
  const auto compressed = static_cast<megamla_kv_format>(p.compressed.format);
  plan::DecodeDevice device{};
  MEGAMLA_CUDA_CALL("decode_attention", decode_attention_device(window, compressed, &device));
  const auto tiles = [](int width) { return (width + kTileKeys - 1) / kTileKeys; };
  d.window_tiles = tiles(d.keys[0].width);
  d.tiles = d.window_tiles + tiles(d.keys[1].width);
  const plan::DecodeStep step{d.items, d.tiles, p.batch_invariant != 0};
  const plan::DecodeSplit split = plan::decode_split(step, device);
  d.whole_items = static_cast<uint32_t>(split.whole_items);
  d.cluster = split.cluster;
  MEGAMLA_CUDA_CALL("decode_attention", launch_decode_attention(d, window, compressed, split.blocks,
                                                                static_cast<cudaStream_t>(exec.stream)));
  return {};
}

}  // namespace megamla::cuda
