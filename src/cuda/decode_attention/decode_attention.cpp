#include "cuda/decode_attention/decode_attention.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <random>

#include "core/tensor.hpp"
#include "cuda/attention/translate.hpp"
#include "cuda/decode_attention/few_heads/kernel.hpp"
#include "cuda/decode_attention/kernel.hpp"
#include "cuda/launch.hpp"
#include "format/chunked.hpp"
#include "format/page.hpp"

namespace megamla::cuda {
namespace {

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

void set_query_steps(DecodeParams& d) {
  if (d.q_chunked != 0) {
    d.q_head_stride = format::kQChunkDims;
    d.q_chunk_stride = format::q_chunked_index(d.heads, 0, format::kQChunkDims);
  } else {
    d.q_chunk_stride = format::kQChunkDims;
  }
}

// What the kernel for many heads is told beside that.
void set_tiles(DecodeParams& d) {
  d.q_negative = d.logit_scale < 0;
  // Not 0: masked logits are -infinity before they are scaled.
  d.logit_scale = std::max(std::abs(d.logit_scale), 1e-30F);
  const auto tiles = [](int width) { return (width + kTileKeys - 1) / kTileKeys; };
  d.window_tiles = tiles(d.keys[0].width);
  d.tiles = d.window_tiles + tiles(d.keys[1].width);
}

// The workspace: tickets, statistics, sums. bf16 sums take half of the bytes.
constexpr int64_t kPlaceBytes = int64_t{kTileHeads} * format::kHeadDim * 4;
constexpr int kPlaces = plan::kMostSegments;
int places_of(int32_t output) { return output == MEGAMLA_OUTPUT_FP8_PAIR ? 2 * kPlaces : kPlaces; }
constexpr int64_t kMostHeadTiles = 2;
constexpr int64_t kTicketBytes = format::round_up(plan::kMostBlocks * int64_t{sizeof(uint64_t)}, 256);
constexpr int64_t kStatsBytes = int64_t{plan::kMostBlocks} * 2 * kPlaces * kPartStats * int64_t{sizeof(float)};

DecodeParts parts_in(void* workspace) {
  // No other launch has had the number: what lies in the workspace is not taken for tickets of this one.
  static std::atomic<uint64_t> launches = std::random_device()();
  DecodeParts parts{};
  auto* bytes = static_cast<uint8_t*>(workspace);
  parts.tickets = reinterpret_cast<uint64_t*>(bytes);
  parts.stats = reinterpret_cast<float*>(bytes + kTicketBytes);
  parts.sums = bytes + kTicketBytes + kStatsBytes;
  parts.launch = launches++ * 0x9e3779b97f4a7c15U >> 8 | 1;
  return parts;
}

int64_t most_few_heads() {
#if defined(MEGAMLA_TUNE)  // for sweeps on a device
  if (const char* heads = std::getenv("MEGAMLA_FEW_HEADS_MOST")) return std::atoi(heads);
#endif
  return few_heads::kMostHeads;
}

}  // namespace

int64_t decode_attention_workspace(const megamla_limits& limits) {
  if (limits.heads <= most_few_heads() || limits.tokens == 0) return 0;
  const int64_t blocks = std::min<int64_t>(plan::kMostBlocks, limits.tokens * kMostHeadTiles * plan::kBlocksOfARow);
  return kTicketBytes + kStatsBytes + blocks * kPlaces * kPlaceBytes;
}

Status decode_attention_supports(const megamla_decode_attention_params& p) {
  return expect_aligned_rows("decode_attention", p);
}

Status decode_attention(const megamla_decode_attention_params& p, const megamla_exec& exec) {
  DecodeParams d{};
  const int64_t live_heads = p.live_heads == 0 ? p.q.shape[1] : p.live_heads;
  const bool few = live_heads <= most_few_heads();
  set_query(d, p, kKeyUnshift, few ? few_heads::kMostHeads : kTileHeads);
  set_query_steps(d);
  set_output(d, p);
  if (d.items == 0) return {};
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  d.keys[0] = keys_of(p.window, p.window_slots, p.window_lens);
  d.keys[1] = keys_of(p.compressed, p.compressed_slots, p.compressed_lens);
  const auto window = static_cast<megamla_kv_format>(p.window.format);
  const auto compressed = static_cast<megamla_kv_format>(p.compressed.format);
  bool eights = false;
  MEGAMLA_CUDA_CALL("decode_attention",
                    few_heads::attends_eights(d, window, compressed, p.batch_invariant != 0, &eights));
  if (eights) few_heads::cut_into_eights(d);
  if (few || eights) {
    MEGAMLA_CUDA_CALL("decode_attention", few_heads::launch(d, window, compressed, p.batch_invariant != 0, stream));
    return {};
  }
  set_tiles(d);
  plan::DecodeDevice device{};
  MEGAMLA_CUDA_CALL("decode_attention", decode_attention_device(window, compressed, &device));
#if defined(MEGAMLA_TUNE)  // for sweeps on a device
  if (const char* most = std::getenv("MEGAMLA_DECODE_CLUSTER")) {
    for (size_t n = std::strtoul(most, nullptr, 10) + 1; n < device.clusters.size(); ++n) device.clusters[n] = 0;
  }
#endif
  d.places = places_of(p.output);
  const bool ragged = d.keys[0].lens != nullptr || d.keys[1].lens != nullptr;
  plan::DecodeSplit split = plan::decode_split({d.items, d.tiles, ragged, p.batch_invariant != 0, d.places}, device);
#if defined(MEGAMLA_TUNE)  // for sweeps on a device
  const char* spread = std::getenv("MEGAMLA_DECODE_SPREAD");
  const int64_t blocks = std::min<int64_t>(device.blocks, d.items);
  if (spread != nullptr && *spread == 'k') split = {plan::Spread::kKeys, blocks, 1, d.items, 1, 0, 0};
  if (spread != nullptr && *spread == 'w') split = {plan::Spread::kRows, blocks, 1, d.items, 1, 0, 0};
#endif
  d.spread = split.spread;
  d.whole_items = static_cast<uint32_t>(split.whole_items);
  d.cluster = split.cluster;
  d.cluster_inverse = static_cast<uint32_t>((0x10000 + split.cluster - 1) / split.cluster);
  d.segments = split.segments;
  d.segment_tiles = split.segment_tiles;
  d.block_segments = split.block_segments;
  d.parts = parts_in(exec.workspace);
  MEGAMLA_CUDA_CALL("decode_attention", launch_decode_attention(d, window, compressed, split.blocks, stream));
  return {};
}

}  // namespace megamla::cuda
