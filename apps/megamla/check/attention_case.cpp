// decode, decode_slice, prefill: both output kinds of the same case, each held against the float64 result.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/attention_rules.hpp"
#include "check/call_op.hpp"
#include "check/kv_formats.hpp"
#include "megamla/decode_attention.h"
#include "megamla/prefill_attention.h"

namespace megamla::check {
namespace {

struct Outputs {
  megamla_tensor out, out_scale, lse;
};

constexpr uint8_t kUnwritten = 0xa5;

int32_t q_layout(const Case& golden) {
  return golden.text("q_layout") == "chunked" ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
}

// The pair of a case: for a slice, all of the allocation filled with the case's poison.
Outputs make_pair(Run& run, int64_t tokens, int64_t heads, bool slice_case) {
  const int64_t allocated = slice_case ? run.golden.integer("t_alloc") : tokens;
  const int64_t groups = heads / 8;
  const int64_t a = (allocated + 3) / 4 * 4;
  Outputs o;
  o.out = run.arena().tensor(MEGAMLA_F8_E4M3, {allocated, groups, 4096},
                             slice_case ? static_cast<uint8_t>(run.golden.integer("poison_u8")) : kUnwritten);
  const megamla_tensor words = run.arena().tensor(MEGAMLA_I32, {groups, 32, a}, kUnwritten);
  if (slice_case) {
    std::fill_n(data<int32_t>(words), groups * 32 * a, static_cast<int32_t>(run.golden.integer("poison_i32")));
  }
  o.out_scale = host_tensor(words.data, MEGAMLA_I32, {allocated, groups, 32});
  o.out_scale.stride[0] = 1;
  o.out_scale.stride[1] = 32 * a;
  o.out_scale.stride[2] = a;
  o.lse = run.arena().tensor(MEGAMLA_F32, {tokens, heads}, kUnwritten);
  return o;
}

AttentionTruth make_truth(Run& run) {
  Case& g = run.golden;
  AttentionTruth truth;
  truth.o = g.expected("out.o_f64");
  truth.lse = g.expected("out.lse_f64");
  truth.scale_words = g.expected("out.sf");
  truth.scale = std::max(1.0, g.number("scale"));
  truth.live_heads = g.has_text("live_heads") ? g.integer("live_heads") : truth.o.shape[1];
  truth.first_token = g.has_text("start") ? g.integer("start") : 0;
  return truth;
}

// Bytes outside the slice, pad columns included, still hold the poison.
void check_outside(Run& run, const Outputs& o) {
  const int64_t begin = run.golden.integer("start");
  const int64_t end = run.golden.integer("end");
  const auto data_poison = static_cast<uint8_t>(run.golden.integer("poison_u8"));
  const auto word_poison = static_cast<int32_t>(run.golden.integer("poison_i32"));
  const int64_t row = o.out.shape[1] * 4096;
  for (int64_t t = 0; t < o.out.shape[0]; ++t) {
    if (t >= begin && t < end) continue;
    const uint8_t* bytes = data<const uint8_t>(o.out) + t * row;
    run.verdict.require("outside", std::all_of(bytes, bytes + row, [&](uint8_t b) { return b == data_poison; }),
                        fmt::format("data of token {} was written", t));
  }
  const int64_t a = o.out_scale.stride[2];
  for (int64_t i = 0; i < o.out.shape[1] * 32 * a; ++i) {
    const int64_t t = i % a;
    if (t >= begin && t < end) continue;
    run.verdict.require("outside", data<const int32_t>(o.out_scale)[i] == word_poison,
                        fmt::format("scale word {} was written", i));
  }
}

// Runs `call` for the pair, then for the bf16 output, and compares both.
template <class Params, class Call>
void run_both_outputs(Run& run, Params& p, bool slice_case, Call&& call) {
  const int64_t tokens = p.q.shape[0];
  const int64_t heads = p.q.shape[1];
  const AttentionTruth truth = make_truth(run);
  const Outputs pair = make_pair(run, tokens, heads, slice_case);
  p.output = MEGAMLA_OUTPUT_FP8_PAIR;
  p.out = slice(pair.out, truth.first_token, truth.first_token + tokens);
  p.out_scale = slice(pair.out_scale, truth.first_token, truth.first_token + tokens);
  p.lse = pair.lse;
  call();
  compare_pair(truth, p.out, p.out_scale, run.verdict);
  compare_lse(truth, pair.lse, "lse", run.verdict);
  if (slice_case) check_outside(run, pair);

  p.output = MEGAMLA_OUTPUT_BF16;
  p.out = run.arena().tensor(MEGAMLA_BF16, {tokens, heads, 512}, kUnwritten);
  p.out_scale = megamla_tensor{};
  p.lse = run.arena().tensor(MEGAMLA_F32, {tokens, heads}, kUnwritten);
  call();
  compare_bf16(truth, p.out, run.verdict);
  compare_lse(truth, p.lse, "bf16 lse", run.verdict);
}

template <class Params>
void fill_common(Run& run, Params& p) {
  Case& g = run.golden;
  p.q = g.input("in.q");
  p.q_layout = q_layout(g);
  p.q_norm = static_cast<int32_t>(g.integer("q_norm"));
  p.q_norm_eps = static_cast<float>(g.number("eps"));
  p.softmax_scale = static_cast<float>(g.number("sm_scale"));
  p.positions = g.input("in.positions");
  p.cos_sin = g.input("in.cos_sin");
  p.attn_sink = g.optional_input("in.attn_sink");
  p.live_heads = g.has_text("live_heads") ? g.integer("live_heads") : 0;
}

}  // namespace

void run_decode(Run& run) {
  Case& g = run.golden;
  megamla_decode_attention_params p;
  megamla_decode_attention_init(&p);
  fill_common(run, p);
  const std::string& layout = g.text("layout");
  const auto cache = [&](const std::string& prefix) {
    return kv_cache(g.input("in." + prefix + "_cache"), g.text(prefix + "_format"), layout,
                    g.integer(prefix + "_page_size"), g.integer(prefix + "_base_offset"));
  };
  p.window = cache("swa");
  p.window_slots = g.input("in.swa_indices");
  p.window_lens = g.optional_input("in.swa_lens");
  if (g.text("extra_format") != "none") {
    p.compressed = cache("extra");
    p.compressed_slots = g.input("in.extra_indices");
    p.compressed_lens = g.optional_input("in.extra_lens");
  }
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  limits.window_width = p.window_slots.shape[1];
  limits.compressed_width = present(p.compressed_slots) ? p.compressed_slots.shape[1] : 0;
  take_workspace(run, megamla_decode_attention_workspace_size, limits);
  run_both_outputs(run, p, g.has_text("t_alloc"),
                   [&] { call_op(run, p, megamla_decode_attention_implementation, megamla_decode_attention); });
}

void run_prefill(Run& run) {
  Case& g = run.golden;
  megamla_prefill_attention_params p;
  megamla_prefill_attention_init(&p);
  fill_common(run, p);
  p.kv = g.input("in.kv");
  p.indices = g.input("in.indices");
  p.topk_length = g.optional_input("in.topk_length");
  p.max_logits = run.arena().tensor(MEGAMLA_F32, {p.q.shape[0], p.q.shape[1]}, kUnwritten);
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  limits.compressed_width = p.indices.shape[1];
  take_workspace(run, megamla_prefill_attention_workspace_size, limits);
  run_both_outputs(run, p, false, [&] {
    call_op(run, p, megamla_prefill_attention_implementation, megamla_prefill_attention);
    AttentionTruth maxima;
    maxima.lse = g.expected("out.max_logits_f64");
    maxima.live_heads = p.q.shape[1];
    compare_lse(maxima, p.max_logits, "max_logits", run.verdict);
  });
}

}  // namespace megamla::check
