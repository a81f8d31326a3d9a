// The two attention segments of a step: prefill (gathered rows, or straight from the pages) and decode. Both write
// disjoint token ranges of the one output pair.
#include <algorithm>

#include "format/chunked.hpp"
#include "layer/run.hpp"
#include "megamla/decode_attention.h"
#include "megamla/index_ops.h"
#include "megamla/kv_gather.h"
#include "megamla/prefill_attention.h"
#include "ops/step_lists.hpp"

namespace megamla::layer {
namespace {

// Names a chunk of a kv source within a step: equal for the layers that share the rows, and for nothing else.
uint64_t retained_key(int64_t kv_source, uint64_t step_id, size_t chunk) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 31)) * 0x9E3779B97F4A7C15U;
    return z ^ (z >> 29);
  };
  return mix(mix(mix(static_cast<uint64_t>(kv_source) + 1) ^ step_id) ^ chunk);
}

megamla_tensor top_k(const megamla_step_metadata& metadata, const StepViews& views) {
  return present(metadata.topk) ? metadata.topk : views.topk;
}

}  // namespace

// Window slots and compressed slots of the tokens that read pages: decodes, and prefills that are not gathered.
Status MegaAttentionLayer::list_keys(Run& run) const {
  const megamla_step_metadata& m = run.metadata;
  const Step& step = run.step;
  StepViews& v = run.views;
  megamla_swa_metadata_params swa;
  megamla_swa_metadata_init(&swa);
  swa.query_start_loc = m.query_start_loc;
  swa.seq_lens = m.seq_lens;
  swa.slot_mapping = m.slot_mapping;
  swa.block_table = m.window_table;
  swa.page_size = run.params.window.page_size;
  swa.num_pages = run.params.window.num_pages;
  swa.window = config_.window;
  swa.num_decodes = step.listed_requests;
  swa.causal = 1;
  swa.is_valid_token = v.is_valid;
  swa.token_to_req = run.real(v.token_to_req);
  swa.decode_swa_indices = slice(v.window_slots, 0, step.listed_tokens);
  swa.decode_swa_lens = v.window_lens;
  swa.prefill_gather_lens = slice(v.gather_lens, step.listed_requests, step.requests);
  MEGAMLA_RETURN_IF_ERROR(call(megamla_swa_metadata(&swa, &run.side)));
  if (config_.compress_ratio == 0) return {};

  if (!present(m.topk)) {
    MEGAMLA_RETURN_IF_ERROR(
        ops::builtin_topk(run.real(m.positions), config_.compress_ratio, run.real(v.topk), run.side));
  }
  megamla_topk_to_slots_params slots;
  megamla_topk_to_slots_init(&slots);
  slots.topk = slice(top_k(m, v), 0, step.listed_tokens);
  slots.token_to_req = slice(v.token_to_req, 0, step.listed_tokens);
  slots.is_valid_token = slice(v.is_valid, 0, step.listed_tokens);
  slots.block_table = m.compressed_table;
  slots.slots_per_page = run.params.compressed.page_size;
  slots.slots = slice(v.compressed_slots, 0, step.listed_tokens);
  slots.lens = slice(v.compressed_lens, 0, step.listed_tokens);
  return call(megamla_topk_to_slots(&slots, &run.side));
}

Status MegaAttentionLayer::prefill_segment(Run& run) const {
  const std::vector<PrefillChunk>& chunks = run.step.chunks;
  if (std::any_of(chunks.begin(), chunks.end(), [](const PrefillChunk& chunk) { return chunk.gathered; })) {
    MEGAMLA_RETURN_IF_ERROR(
        ops::gathered_lens({run.metadata.query_start_loc, run.metadata.seq_lens, config_.window, config_.compress_ratio,
                            run.views.gather_lens, run.views.compressed_lens_of_requests},
                           run.exec));
  }
  for (size_t i = 0; i < run.step.chunks.size(); ++i) {
    const PrefillChunk& chunk = run.step.chunks[i];
    MEGAMLA_RETURN_IF_ERROR(chunk.gathered
                                ? prefill_chunk(run, i)
                                : decode_segment(run, chunk.first_token, chunk.first_token + chunk.num_tokens));
  }
  return {};
}

Status MegaAttentionLayer::decode_segment(Run& run, int64_t begin, int64_t end) const {
  if (begin == end) return {};
  const StepViews& v = run.views;
  megamla_decode_attention_params p;
  megamla_decode_attention_init(&p);
  p.q = slice(v.q, begin, end);
  p.q_layout = MEGAMLA_Q_CHUNKED;
  p.softmax_scale = config_.softmax_scale;
  p.positions = slice(run.metadata.positions, begin, end);
  p.cos_sin = run.params.cos_sin;
  p.window = run.params.window;
  p.window_slots = slice(v.window_slots, begin, end);
  p.window_lens = slice(v.window_lens, begin, end);
  if (config_.compress_ratio > 0) {
    p.compressed = run.params.compressed;
    p.compressed_slots = slice(v.compressed_slots, begin, end);
    p.compressed_lens = slice(v.compressed_lens, begin, end);
  }
  p.attn_sink = loader_.weights().attn_sink.view();
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.batch_invariant = config_.batch_invariant;
  p.out = slice(v.pair, begin, end);
  p.out_scale = slice(v.pair_scale, begin, end);
  p.lse = run.lse_slice(begin, end);
  return call(megamla_decode_attention(&p, &run.exec));
}

// Both caches' rows of the chunk's requests: compressed rows from row 0, window rows from row N of each request.
Status MegaAttentionLayer::gather_chunk(Run& run, size_t index, const megamla_tensor& rows,
                                        bool compressed_intact) const {
  const PrefillChunk& chunk = run.step.chunks[index];
  const int64_t first = chunk.first_request;
  const int64_t last = first + chunk.rows.end - chunk.rows.start;
  const megamla_step_metadata& m = run.metadata;
  megamla_kv_gather_params gather;
  megamla_kv_gather_init(&gather);
  gather.out = rows;
  if (config_.compress_ratio > 0 && !compressed_intact) {
    gather.cache = run.params.compressed;
    gather.seq_lens = slice(run.views.compressed_lens_of_requests, first, last);
    gather.block_table = slice(m.compressed_table, first, last);
    MEGAMLA_RETURN_IF_ERROR(call(megamla_kv_gather(&gather, &run.exec)));
  }
  gather.cache = run.params.window;
  gather.seq_lens = slice(m.seq_lens, first, last);
  gather.gather_lens = slice(run.views.gather_lens, first, last);
  gather.block_table = slice(m.window_table, first, last);
  gather.offset = chunk.rows.n;
  return call(megamla_kv_gather(&gather, &run.exec));
}

Status MegaAttentionLayer::prefill_chunk(Run& run, size_t index) const {
  const PrefillChunk& chunk = run.step.chunks[index];
  const int64_t requests = chunk.rows.end - chunk.rows.start;
  const int64_t begin = chunk.first_token;
  const int64_t end = begin + chunk.num_tokens;
  if (begin == end) return {};
  const StepViews& v = run.views;
  const megamla_step_metadata& m = run.metadata;

  const int64_t owner = config_.compress_ratio > 0 ? config_.kv_source_layer : config_.layer_id;
  const bool consumer = role_of(config_) == MEGAMLA_ROLE_KV_CONSUMER;
  void* memory = nullptr;
  bool intact = false;
  MEGAMLA_RETURN_IF_ERROR(run.workspace.retained(retained_key(owner, m.step_id, index),
                                                 requests * chunk.rows.m * 2 * config_.head_dim, &memory, &intact));
  megamla_tensor rows = host_tensor(memory, MEGAMLA_BF16, {requests, chunk.rows.m, config_.head_dim});
  rows.cuda_device = cuda_device_;
  MEGAMLA_RETURN_IF_ERROR(gather_chunk(run, index, rows, consumer && intact));

  megamla_combine_topk_swa_params combine;
  megamla_combine_topk_swa_init(&combine);
  combine.topk = slice(top_k(m, v), begin, end);
  combine.query_start_loc = slice(m.query_start_loc, chunk.first_request, chunk.first_request + requests + 1);
  combine.seq_lens = slice(m.seq_lens, chunk.first_request, chunk.first_request + requests);
  combine.gather_lens = slice(v.gather_lens, chunk.first_request, chunk.first_request + requests);
  combine.window = config_.window;
  combine.compress_ratio = config_.compress_ratio;
  combine.m = chunk.rows.m;
  combine.n = chunk.rows.n;
  combine.indices = slice(v.combined, begin, end);
  combine.lens = slice(v.combined_lens, begin, end);
  MEGAMLA_RETURN_IF_ERROR(call(megamla_combine_topk_swa(&combine, &run.exec)));

  megamla_prefill_attention_params p;
  megamla_prefill_attention_init(&p);
  p.q = slice(v.q, begin, end);
  p.q_layout = MEGAMLA_Q_CHUNKED;
  p.softmax_scale = config_.softmax_scale;
  p.positions = slice(m.positions, begin, end);
  p.cos_sin = run.params.cos_sin;
  p.kv = host_tensor(memory, MEGAMLA_BF16, {requests * chunk.rows.m, config_.head_dim});
  p.kv.cuda_device = cuda_device_;
  p.indices = combine.indices;
  p.topk_length = combine.lens;
  p.attn_sink = loader_.weights().attn_sink.view();
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = slice(v.pair, begin, end);
  p.out_scale = slice(v.pair_scale, begin, end);
  p.lse = run.lse_slice(begin, end);
  return call(megamla_prefill_attention(&p, &run.exec));
}

}  // namespace megamla::layer
