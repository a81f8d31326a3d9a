#include "layer/step.hpp"

#include <algorithm>

#include "core/validate.hpp"
#include "format/kv_record.hpp"
#include "layer/call.hpp"
#include "layer/config.hpp"
#include "layer/workspace.hpp"
#include "ops/check_apart.hpp"
#include "ops/communicator.hpp"

namespace megamla::layer {
namespace {

constexpr const char* kOp = "forward";

Status check_taps(const megamla_layer_config& c, const megamla_layer_taps& taps, int64_t tokens, int32_t cuda_device) {
  constexpr auto kWrite = Validator::Access::kWrite;
  const int64_t heads = c.num_heads / c.tp_size;
  const int64_t groups = c.o_groups / c.tp_size;
  Validator v(kOp, cuda_device);
  v.optional_tensor("taps.qr", taps.qr, {MEGAMLA_BF16}, {tokens, c.q_lora_rank}, 0, kWrite);
  v.optional_tensor("taps.latent", taps.latent, {MEGAMLA_BF16}, {tokens, c.head_dim}, 0, kWrite);
  v.optional_tensor("taps.compressed_latent", taps.compressed_latent, {MEGAMLA_BF16}, {tokens, c.head_dim}, 0, kWrite);
  v.optional_tensor("taps.q", taps.q, {MEGAMLA_BF16}, {tokens, heads, c.head_dim}, 0, kWrite);
  v.optional_tensor("taps.lse", taps.lse, {MEGAMLA_F32}, {tokens, heads}, 0, kWrite);
  v.require(present(taps.pair) == present(taps.pair_scale), "taps.pair, taps.pair_scale", "both or none",
            "one of them");
  if (present(taps.pair))
    v.output_pair("taps.pair", taps.pair, "taps.pair_scale", taps.pair_scale, tokens, groups, kWrite);
  v.optional_tensor("taps.z", taps.z, {MEGAMLA_BF16}, {tokens, groups, c.o_lora_rank}, 0, kWrite);
  if (c.quantize_z != 0) v.absent("taps.z", taps.z, "z is MXFP8 in this layer");
  return v.status();
}

// The copies that the CPU reads: on a GPU they must be there; in host memory the lists themselves serve.
const megamla_tensor& host_starts(const megamla_step_metadata& m) {
  return present(m.host_query_start_loc) ? m.host_query_start_loc : m.query_start_loc;
}
const megamla_tensor& host_seq_lens(const megamla_step_metadata& m) {
  return present(m.host_seq_lens) ? m.host_seq_lens : m.seq_lens;
}

Status check_host_copies(const megamla_step_metadata& m, bool needed) {
  const int64_t requests = m.seq_lens.shape[0];
  Validator v(kOp, -1);
  if (needed || present(m.host_query_start_loc))
    v.tensor("host_query_start_loc", m.host_query_start_loc, {MEGAMLA_I32}, {requests + 1}, 0);
  if (needed || present(m.host_seq_lens)) v.tensor("host_seq_lens", m.host_seq_lens, {MEGAMLA_I32}, {requests}, 0);
  return v.status();
}

Status check_metadata(const megamla_layer_config& c, const megamla_forward_params& p, const megamla_step_metadata& m,
                      int32_t cuda_device) {
  constexpr int64_t kAny = Validator::kAny;
  const int64_t tokens = p.x.shape[0];
  const bool source = role_of(c) == MEGAMLA_ROLE_KV_SOURCE;
  Validator v(kOp, cuda_device);
  v.tensor("seq_lens", m.seq_lens, {MEGAMLA_I32}, {kAny}, 0);
  if (!v.ok()) return v.status();
  const int64_t requests = m.seq_lens.shape[0];
  v.range("requests", requests, 0, c.max_num_requests);
  v.tensor("query_start_loc", m.query_start_loc, {MEGAMLA_I32}, {requests + 1}, 0);
  v.tensor("positions", m.positions, {MEGAMLA_I32, MEGAMLA_I64}, {tokens}, 0);
  v.tensor("slot_mapping", m.slot_mapping, {MEGAMLA_I64}, {tokens}, 0);
  v.tensor("window_table", m.window_table, {MEGAMLA_I32}, {requests, kAny}, 1);
  if (c.compress_ratio > 0) v.tensor("compressed_table", m.compressed_table, {MEGAMLA_I32}, {requests, kAny}, 1);
  if (source) v.tensor("compressed_slot_mapping", m.compressed_slot_mapping, {MEGAMLA_I64}, {tokens}, 0);
  if (source && c.compress_ratio == 2) v.tensor("state_block", m.state_block, {MEGAMLA_I32}, {requests}, 0);
  if (c.compress_ratio > 0) v.optional_tensor("topk", m.topk, {MEGAMLA_I32}, {tokens, c.index_topk}, 1);
  MEGAMLA_RETURN_IF_ERROR(v.status());
  return check_host_copies(m, cuda_device >= 0);
}

// What a step writes shares memory with nothing else of the call: each op checks its own part only once others have
// written theirs. The two caches may lie between each other's pages. What the layer does not use may be anything.
Status check_memory(const megamla_layer_config& c, const megamla_forward_params& p, int32_t cuda_device) {
  const megamla_step_metadata& m = *p.metadata;
  const bool compressed = c.compress_ratio > 0;
  const bool source = role_of(c) == MEGAMLA_ROLE_KV_SOURCE;
  const bool ring = source && c.compress_ratio == 2;
  const megamla_tensor absent{};
  const auto used = [&](bool uses, const megamla_tensor& t) { return uses ? &t : &absent; };
  const megamla_layer_taps no_taps{};
  const megamla_layer_taps& taps = p.taps != nullptr ? *p.taps : no_taps;
  const std::initializer_list<ops::NamedTensor> outputs = {{"y", &p.y},
                                                           {"compressor_state", used(ring, p.compressor_state)},
                                                           {"taps.qr", &taps.qr},
                                                           {"taps.latent", &taps.latent},
                                                           {"taps.compressed_latent", &taps.compressed_latent},
                                                           {"taps.q", &taps.q},
                                                           {"taps.lse", &taps.lse},
                                                           {"taps.pair", &taps.pair},
                                                           {"taps.pair_scale", &taps.pair_scale},
                                                           {"taps.z", &taps.z}};
  const std::initializer_list<ops::NamedTensor> inputs = {
      {"x", &p.x},
      {"cos_sin", &p.cos_sin},
      {"query_start_loc", &m.query_start_loc},
      {"seq_lens", &m.seq_lens},
      {"positions", &m.positions},
      {"slot_mapping", &m.slot_mapping},
      {"window_table", &m.window_table},
      {"compressed_slot_mapping", used(source, m.compressed_slot_mapping)},
      {"compressed_table", used(compressed, m.compressed_table)},
      {"state_block", used(ring, m.state_block)},
      {"topk", used(compressed, m.topk)}};
  const megamla_tensor workspace = p.workspace->view();
  Validator v(kOp, cuda_device);
  ops::check_apart(v, outputs, inputs);
  const auto apart_from_caches = [&](const char* name, const megamla_tensor& tensor) {
    v.no_overlap(name, tensor, "window", p.window);
    if (compressed) v.no_overlap(name, tensor, "compressed", p.compressed);
  };
  for (const auto& tensors : {outputs, inputs}) {
    for (const ops::NamedTensor& t : tensors) {
      apart_from_caches(t.name, *t.tensor);
      v.no_overlap(t.name, *t.tensor, "workspace", workspace);
    }
  }
  apart_from_caches("workspace", workspace);
  return v.status();
}

// How often the tokens must read each row for gathering to pay (docs/design.md, "Prefill path").
int64_t reads_that_pay(const megamla_layer_config& c, megamla_device device) {
  if (device != MEGAMLA_DEVICE_CUDA) return 2;
  return c.num_heads / c.tp_size > 8 ? 5 : 20;
}

// A chunk is gathered where its rows, written once, cost less than what its tokens would dequantise themselves.
bool gather_chunk(const megamla_layer_config& c, const megamla_prefill_chunk& chunk, int64_t tokens,
                  megamla_device device) {
  if (c.prefill_path == MEGAMLA_PREFILL_GATHERED) return true;
  const int64_t keys = std::min(chunk.n, c.compress_ratio > 0 ? c.index_topk : 0) + c.window;
  return reads_that_pay(c, device) * (chunk.end - chunk.start) * chunk.m <= tokens * keys;
}

Status check_lengths(const megamla_layer_config& c, const megamla_step_metadata& m, int64_t tokens,
                     std::vector<int32_t>* query_lens) {
  const megamla_tensor& starts = host_starts(m);
  const megamla_tensor& lens = host_seq_lens(m);
  const int64_t requests = lens.shape[0];
  if (at<const int32_t>(starts, 0) != 0)
    return invalid_argument("forward: query_start_loc[0]: expected 0, got {}", at<const int32_t>(starts, 0));
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t begin = at<const int32_t>(starts, r);
    const int64_t end = at<const int32_t>(starts, r + 1);
    const int64_t seq_len = at<const int32_t>(lens, r);
    if (end < begin || end > tokens) {
      return invalid_argument("forward: query_start_loc[{}]: expected a value in [{}, {}], got {}", r + 1, begin,
                              tokens, end);
    }
    if (seq_len < end - begin || seq_len > c.max_model_len) {
      return invalid_argument(
          "forward: seq_lens[{}]: expected a value in [{} (new tokens), {} (max_model_len)], got {}", r, end - begin,
          c.max_model_len, seq_len);
    }
    query_lens->push_back(static_cast<int32_t>(end - begin));
  }
  return {};
}

Status check_reduce(const megamla_layer_config& c, const megamla_forward_params& p, int32_t cuda_device) {
  Validator v(kOp, cuda_device);
  v.range("reduce", p.reduce, MEGAMLA_REDUCE_NONE, MEGAMLA_REDUCE_SCATTER);
  if (!v.ok() || p.reduce == MEGAMLA_REDUCE_NONE) return v.status();
  v.require(c.tp_size > 1, "reduce", "none for tp_size 1", "a sum over ranks");
  v.require(cuda_device >= 0, "reduce", "none where the layer is not on a GPU (the caller sums)", "a sum over ranks");
  v.require(p.communicator != nullptr, "communicator", "a communicator", "NULL");
  if (!v.ok()) return v.status();
  const megamla_communicator& ranks = *p.communicator;
  v.require(ranks.size == c.tp_size && ranks.rank == c.tp_rank && ranks.cuda_device == cuda_device, "communicator",
            fmt::format("rank {} of {} on GPU {}", c.tp_rank, c.tp_size, cuda_device),
            fmt::format("rank {} of {} on GPU {}", ranks.rank, ranks.size, ranks.cuda_device));
  if (p.reduce == MEGAMLA_REDUCE_SCATTER)
    v.require(c.quantize_z == 0, "reduce", "no reduce-scatter in a layer with quantize_z", "one");
  return v.status();
}

}  // namespace

Status check_forward(const megamla_layer_config& c, const megamla_forward_params& p, int32_t cuda_device) {
  constexpr int64_t kAny = Validator::kAny;
  Validator v(kOp, cuda_device);
  v.require(p.workspace != nullptr, "workspace", "a workspace", "NULL");
  v.tensor("x", p.x, {MEGAMLA_BF16}, {kAny, c.hidden_size}, 1);
  if (!v.ok()) return v.status();
  v.range("tokens", p.x.shape[0], 0, c.max_num_batched_tokens);
  MEGAMLA_RETURN_IF_ERROR(check_reduce(c, p, cuda_device));
  const bool scatter = p.reduce == MEGAMLA_REDUCE_SCATTER;
  if (scatter) v.multiple_of("tokens", p.x.shape[0], c.tp_size);
  if (!v.ok()) return v.status();
  const int64_t rows = scatter ? p.x.shape[0] / c.tp_size : p.x.shape[0];
  const std::initializer_list<megamla_dtype> any = {MEGAMLA_BF16, MEGAMLA_F32};
  const std::initializer_list<megamla_dtype> bf16 = {MEGAMLA_BF16};
  // A sum over ranks is one call over all rows.
  v.tensor("y", p.y, scatter ? bf16 : any, {rows, c.hidden_size}, p.reduce == MEGAMLA_REDUCE_NONE ? 1 : 0,
           Validator::Access::kWrite);
  v.no_overlap("y", p.y, "x", p.x);
  MEGAMLA_RETURN_IF_ERROR(v.status());
  if (p.metadata == nullptr) return {};
  v.tensor("cos_sin", p.cos_sin, {MEGAMLA_F32}, {kAny, format::kRopeDim}, 1);
  v.cache("window", p.window, {static_cast<megamla_kv_format>(c.window_format)});
  if (c.compress_ratio > 0) v.cache("compressed", p.compressed, {static_cast<megamla_kv_format>(c.compressed_format)});
  if (role_of(c) == MEGAMLA_ROLE_KV_SOURCE && c.compress_ratio == 2) {
    v.tensor("compressor_state", p.compressor_state, {MEGAMLA_F32}, {kAny, kAny, 2 * c.head_dim}, 0);
  }
  MEGAMLA_RETURN_IF_ERROR(v.status());
  MEGAMLA_RETURN_IF_ERROR(check_metadata(c, p, *p.metadata, cuda_device));
  if (p.taps != nullptr) MEGAMLA_RETURN_IF_ERROR(check_taps(c, *p.taps, p.x.shape[0], cuda_device));
  return check_memory(c, p, cuda_device);
}

Status plan_step(const megamla_layer_config& c, const megamla_forward_params& p, megamla_device device, Step* step) {
  const megamla_step_metadata& m = *p.metadata;
  step->tokens = p.x.shape[0];
  step->requests = m.seq_lens.shape[0];
  std::vector<int32_t> query_lens;
  MEGAMLA_RETURN_IF_ERROR(check_lengths(c, m, step->tokens, &query_lens));
  const megamla_tensor& starts = host_starts(m);
  step->real_tokens = at<const int32_t>(starts, step->requests);
  MEGAMLA_RETURN_IF_ERROR(
      call(megamla_split_batch(query_lens.data(), step->requests, 1 + c.num_speculative_tokens, &step->split)));

  const int64_t first_prefill = step->split.num_decodes;
  megamla_prefill_chunk_plan_params plan{};
  plan.struct_size = sizeof(plan);
  plan.seq_lens = data<const int32_t>(host_seq_lens(m)) + first_prefill;
  plan.query_lens = query_lens.data() + first_prefill;
  plan.num_requests = step->split.num_prefills;
  plan.compress_ratio = c.compress_ratio;
  plan.has_compressed = c.compress_ratio > 0 ? 1 : 0;
  plan.chunk_size = c.prefill_chunk_size;
  plan.window = c.window;
  plan.max_model_len = c.max_model_len;
  plan.max_num_batched_tokens = c.max_num_batched_tokens;
  std::vector<megamla_prefill_chunk> chunks(static_cast<size_t>(plan.num_requests));
  int64_t count = 0;
  MEGAMLA_RETURN_IF_ERROR(call(megamla_prefill_chunk_plan(&plan, chunks.data(), &count)));

  const bool may = may_gather(c, device);
  step->listed_requests = first_prefill;
  for (int64_t i = 0; i < count; ++i) {
    const megamla_prefill_chunk& rows = chunks[static_cast<size_t>(i)];
    const int64_t first = first_prefill + rows.start;
    const int64_t begin = at<const int32_t>(starts, first);
    const int64_t end = at<const int32_t>(starts, first_prefill + rows.end);
    const bool gathered = may && gather_chunk(c, rows, end - begin, device);
    step->chunks.push_back({rows, first, begin, end - begin, gathered});
    if (!gathered) step->listed_requests = first_prefill + rows.end;
  }
  step->listed_tokens = at<const int32_t>(starts, step->listed_requests);
  return {};
}

}  // namespace megamla::layer
