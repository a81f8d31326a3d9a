// The checks that decode_attention and prefill_attention share.
#pragma once

#include <algorithm>

#include "core/validate.hpp"
#include "megamla/prefill_attention.h"

namespace megamla::ops {

constexpr int64_t kMaxTokens = int64_t{1} << 31;     // as a size query takes them (check_limits)
constexpr int64_t kMaxListWidth = int64_t{1} << 31;  // likewise

// q, its layout and options, positions and table. True if q's shape can be relied on.
template <class Params>
bool validate_query(Validator& v, const Params& p) {
  v.range("q_layout", p.q_layout, MEGAMLA_Q_STANDARD, MEGAMLA_Q_CHUNKED);
  v.tensor("q", p.q, {MEGAMLA_BF16}, {Validator::kAny, Validator::kAny, 512}, p.q_layout == MEGAMLA_Q_CHUNKED ? 1 : 2);
  if (!v.ok()) return false;
  v.range("q tokens", p.q.shape[0], 0, kMaxTokens);
  v.range("q heads", p.q.shape[1], 8, 128).multiple_of("q heads", p.q.shape[1], 8);
  v.range("live_heads", p.live_heads, 0, p.q.shape[1]).multiple_of("live_heads", p.live_heads, 8);
  v.finite("q_norm_eps", p.q_norm_eps);
  v.require(p.q_norm == 0 || p.q_norm_eps >= 0, "q_norm_eps", "a value of at least 0", p.q_norm_eps);
  v.finite("softmax_scale", p.softmax_scale);
  v.optional_tensor("cos_sin", p.cos_sin, {MEGAMLA_F32}, {Validator::kAny, 64}, 1);
  if (present(p.cos_sin)) {
    v.tensor("positions", p.positions, {MEGAMLA_I32, MEGAMLA_I64}, {p.q.shape[0]}, 1);
  } else {
    v.optional_tensor("positions", p.positions, {MEGAMLA_I32, MEGAMLA_I64}, {p.q.shape[0]}, 1);
  }
  v.optional_tensor("attn_sink", p.attn_sink, {MEGAMLA_F32}, {p.q.shape[1]}, 1);
  return v.ok();
}

// The outputs' own form. Needs validate_query.
template <class Params>
void validate_outputs(Validator& v, const Params& p) {
  const int64_t tokens = p.q.shape[0];
  const int64_t heads = p.q.shape[1];
  v.range("output", p.output, MEGAMLA_OUTPUT_FP8_PAIR, MEGAMLA_OUTPUT_F32);
  if (!v.ok()) return;
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    v.output_pair("out", p.out, "out_scale", p.out_scale, tokens, heads / 8, Validator::Access::kWrite);
  } else {
    v.tensor("out", p.out, {p.output == MEGAMLA_OUTPUT_BF16 ? MEGAMLA_BF16 : MEGAMLA_F32}, {tokens, heads, 512}, 2,
             Validator::Access::kWrite);
    v.absent("out_scale", p.out_scale, "only the fp8 pair has scales");
  }
  v.optional_tensor("lse", p.lse, {MEGAMLA_F32}, {tokens, heads}, 2, Validator::Access::kWrite);
}

// One output apart from the inputs that both ops have.
template <class Params>
void apart_from_query(Validator& v, const Params& p, const char* name, const megamla_tensor& output) {
  v.no_overlap(name, output, "q", p.q).no_overlap(name, output, "positions", p.positions);
  v.no_overlap(name, output, "cos_sin", p.cos_sin).no_overlap(name, output, "attn_sink", p.attn_sink);
}

}  // namespace megamla::ops
