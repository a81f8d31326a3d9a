// decode, decode_slice, prefill: both output kinds of the same case, each held against the float64 result.
#include <algorithm>

#include "check/attention_rules.hpp"
#include "check/call_op.hpp"
#include "check/kv_formats.hpp"
#include "check/output_pair.hpp"
#include "check/runners.hpp"
#include "format/chunked.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kDims = 512;

// Where the tokens of a call lie in the pair's allocation, and what the allocation holds before.
struct Allocation {
  explicit Allocation(const Case& g, int64_t call_tokens) : tokens(call_tokens), end(call_tokens) {
    if (!g.has_text("t_alloc")) return;
    tokens = g.integer("t_alloc", 0, int64_t{1} << 20);
    end = g.integer("end", 0, tokens);
    begin = g.integer("start", 0, end);
    if (end - begin != call_tokens) g.refuse("metadata 'end'", fmt::format("start + {}", call_tokens), g.text("end"));
    byte = static_cast<uint8_t>(g.integer("poison_u8", 0, 0xff));
    word = static_cast<int32_t>(g.integer("poison_i32", INT32_MIN, INT32_MAX));
  }
  int64_t tokens, begin = 0, end;
  uint8_t byte = kUnwritten;
  int32_t word = static_cast<int32_t>(0xa5a5a5a5U);
};

AttentionTruth make_truth(Case& g, int64_t tokens, int64_t heads, const Allocation& allocation) {
  AttentionTruth truth;
  truth.o = g.expected("out.o_f64", MEGAMLA_F64, {tokens, heads, kDims});
  truth.lse = g.expected("out.lse_f64", MEGAMLA_F64, {tokens, heads});
  truth.scale_words =
      g.expected("out.sf", MEGAMLA_I32, {heads / format::kGroupHeads, 32, format::round_up(allocation.tokens, 4)});
  // The cast of o_f64 itself is not compared; its shape says that the allocation is the case's.
  g.expected("out.fp8", MEGAMLA_F8_E4M3, {allocation.tokens, heads / format::kGroupHeads, format::kGroupWidth});
  truth.scale = std::max(1.0, g.number("scale"));
  truth.live_heads = heads;
  truth.first_token = allocation.begin;
  return truth;
}

// Heads beyond the live ones are not written.
void require_dead_heads(Run& run, const std::string& rule, const megamla_tensor& rows, int64_t live_heads) {
  const int64_t count = rows.shape[0] * rows.shape[1];
  const int64_t row = count > 0 ? bytes_of(rows) / count : 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i % rows.shape[1] < live_heads) continue;
    const uint8_t* bytes = data<const uint8_t>(rows) + i * row;
    run.verdict.require(rule, std::all_of(bytes, bytes + row, [](uint8_t b) { return b == kUnwritten; }), [&] {
      return fmt::format("token {} head {} was written", i / rows.shape[1], i % rows.shape[1]);
    });
  }
}

// One call and its comparison. `compare_more`: what the op gives beside output and lse.
template <class Params, class More>
class BothOutputs {
 public:
  BothOutputs(Run& run, Params& p, More compare_more)
      : run_(run),
        p_(p),
        compare_more_(compare_more),
        tokens_(p.q.shape[0]),
        heads_(p.q.shape[1]),
        allocation_(run.golden, tokens_),
        truth_(make_truth(run.golden, tokens_, heads_, allocation_)) {}

  void live(int64_t live_heads) {
    truth_.live_heads = live_heads;
    p_.live_heads = live_heads;
    pair();
    bf16();
  }

 private:
  void pair() {
    const int64_t groups = heads_ / format::kGroupHeads;
    const OutputPair all =
        make_output_pair(run_.arena(), allocation_.tokens, groups, allocation_.byte, allocation_.word);
    p_.output = MEGAMLA_OUTPUT_FP8_PAIR;
    p_.out = slice(all.data, allocation_.begin, allocation_.end);
    p_.out_scale = slice(all.scale, allocation_.begin, allocation_.end);
    call("lse");
    compare_pair(truth_, p_.out, p_.out_scale, run_.verdict);
    require_untouched(run_.verdict, "outside", all, allocation_.begin, allocation_.end,
                      truth_.live_heads / format::kGroupHeads, allocation_.byte, allocation_.word);
  }

  void bf16() {
    p_.output = MEGAMLA_OUTPUT_BF16;
    p_.out = run_.arena().tensor(MEGAMLA_BF16, {tokens_, heads_, kDims}, kUnwritten);
    p_.out_scale = megamla_tensor{};
    call("bf16 lse");
    compare_bf16(truth_, p_.out, run_.verdict);
    require_dead_heads(run_, "outside", p_.out, truth_.live_heads);
  }

  void call(const std::string& lse_rule) {
    p_.lse = run_.arena().tensor(MEGAMLA_F32, {tokens_, heads_}, kUnwritten);
    call_op(run_, p_);
    compare_lse(truth_, p_.lse, lse_rule, run_.verdict);
    require_dead_heads(run_, "outside", p_.lse, truth_.live_heads);
    compare_more_(truth_.live_heads);
  }

  Run& run_;
  Params& p_;
  More compare_more_;
  int64_t tokens_, heads_;
  Allocation allocation_;
  AttentionTruth truth_;
};

// All heads; and, where some are padding, the live ones alone.
template <class Params, class More>
void run_all(Run& run, Params& p, More compare_more) {
  const int64_t heads = p.q.shape[1];
  BothOutputs<Params, More> outputs(run, p, compare_more);
  outputs.live(heads);
  const int64_t live = run.golden.has_text("live_heads") ? run.golden.integer("live_heads", 0, heads) : heads;
  if (live < heads) outputs.live(live);
}

template <class Params>
void fill_common(Run& run, Params& p) {
  Case& g = run.golden;
  p.q = g.input("in.q", MEGAMLA_BF16, {Case::kAny, Case::kAny, kDims});
  const std::string& layout = g.text("q_layout");
  if (layout != "chunked" && layout != "standard") g.refuse("metadata 'q_layout'", "chunked or standard", layout);
  p.q_layout = layout == "chunked" ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
  p.q_norm = static_cast<int32_t>(g.integer("q_norm", 0, 1));
  p.q_norm_eps = static_cast<float>(g.number("eps"));
  p.softmax_scale = static_cast<float>(g.number("sm_scale"));
  p.positions = g.input("in.positions");
  p.cos_sin = g.input("in.cos_sin");
  p.attn_sink = g.optional_input("in.attn_sink");
}

megamla_kv_cache attention_cache(Case& g, const std::string& prefix) {
  return kv_cache(g.input("in." + prefix + "_cache", MEGAMLA_U8, {Case::kAny, Case::kAny}), g.text(prefix + "_format"),
                  g.text("layout"), g.integer(prefix + "_page_size"), g.integer(prefix + "_base_offset"));
}

template <class Params>
api::Limits attention_limits(const Params& p) {
  api::Limits limits;
  limits.tokens = p.q.shape[0];
  limits.heads = p.q.shape[1];
  return limits;
}

}  // namespace

void run_decode(Run& run) {
  Case& g = run.golden;
  api::DecodeAttention p;
  fill_common(run, p);
  p.window = attention_cache(g, "swa");
  p.window_slots = g.input("in.swa_indices", MEGAMLA_I32, {p.q.shape[0], Case::kAny});
  p.window_lens = g.optional_input("in.swa_lens");
  api::Limits limits = attention_limits(p);
  limits.window_width = p.window_slots.shape[1];
  if (g.text("extra_format") != "none") {
    p.compressed = attention_cache(g, "extra");
    p.compressed_slots = g.input("in.extra_indices", MEGAMLA_I32, {p.q.shape[0], Case::kAny});
    p.compressed_lens = g.optional_input("in.extra_lens");
    limits.compressed_width = p.compressed_slots.shape[1];
  }
  take_workspace<api::DecodeAttention>(run, limits);
  run_all(run, p, [](int64_t) {});
}

void run_prefill(Run& run) {
  Case& g = run.golden;
  api::PrefillAttention p;
  fill_common(run, p);
  p.kv = g.input("in.kv");
  p.indices = g.input("in.indices", MEGAMLA_I32, {p.q.shape[0], Case::kAny});
  p.topk_length = g.optional_input("in.topk_length");
  api::Limits limits = attention_limits(p);
  limits.compressed_width = p.indices.shape[1];
  take_workspace<api::PrefillAttention>(run, limits);
  AttentionTruth maxima;
  maxima.lse = g.expected("out.max_logits_f64", MEGAMLA_F64, {p.q.shape[0], p.q.shape[1]});
  p.max_logits = run.arena().tensor(MEGAMLA_F32, {p.q.shape[0], p.q.shape[1]}, kUnwritten);
  run_all(run, p, [&](int64_t live_heads) {
    maxima.live_heads = live_heads;
    compare_lse(maxima, p.max_logits, "max_logits", run.verdict);
    std::fill_n(data<uint8_t>(p.max_logits), bytes_of(p.max_logits), kUnwritten);
  });
}

}  // namespace megamla::check
