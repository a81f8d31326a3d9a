// decode_attention and prefill_attention.
#include "fuzz/compare.hpp"
#include "fuzz/op_call.hpp"
#include "fuzz/targets.hpp"

namespace megamla::fuzz {
namespace {

// Queries, positions and table, sink, outputs: what the two ops share.
template <class Params>
void draw_common(OpCall<Params>& call, int64_t tokens, int64_t heads) {
  Views& v = call.views;
  Choices& c = v.choices();
  auto& p = call.params;
  p.q_layout = c.coin() ? MEGAMLA_Q_CHUNKED : MEGAMLA_Q_STANDARD;
  p.q = v.values(MEGAMLA_BF16, {tokens, heads, 512}, p.q_layout == MEGAMLA_Q_CHUNKED ? 1 : 2);
  p.q_norm = c.coin() ? 1 : 0;
  p.q_norm_eps = 1e-6F;
  const int64_t table = c.in(0, 40);
  if (c.coin()) p.cos_sin = v.values(MEGAMLA_F32, {table, 64}, 1);
  if (present(p.cos_sin) || c.coin()) {
    p.positions = v.integers(c.coin() ? MEGAMLA_I64 : MEGAMLA_I32, {tokens}, 1, 0, table);
  }
  if (c.coin()) p.attn_sink = v.values(MEGAMLA_F32, {heads}, 1);
  p.live_heads = c.in(0, heads / 8) * 8;
  p.output = static_cast<int32_t>(c.in(0, 2));
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    const int64_t a = format::round_up(tokens, 4) + c.one_of<int64_t>({0, 0, 4});
    p.out = v.tensor(MEGAMLA_F8_E4M3, {tokens, heads / 8, 4096}, 0, Use::kOutput);
    p.out_scale = host_tensor(nullptr, MEGAMLA_I32, {tokens, heads / 8, 32});
    p.out_scale.stride[0] = 1;
    p.out_scale.stride[1] = 32 * a;
    p.out_scale.stride[2] = a;
    v.back(p.out_scale, Use::kOutput);
  } else {
    const megamla_dtype dtype = p.output == MEGAMLA_OUTPUT_F32 ? MEGAMLA_F32 : MEGAMLA_BF16;
    p.out = v.tensor(dtype, {tokens, heads, 512}, 2, Use::kOutput);
  }
  if (c.coin()) p.lse = v.tensor(MEGAMLA_F32, {tokens, heads}, 2, Use::kOutput);
  call.inputs({&p.q, &p.positions, &p.cos_sin, &p.attn_sink});
  call.outputs({&p.out, &p.out_scale, &p.lse});
}

struct Shape {
  int64_t tokens;
  int64_t heads;
  int64_t width;  // of a key list
};

// The reference takes a millisecond for a few thousand dot products: long lists only for few heads.
Shape draw_shape(Choices& c) {
  Shape s{c.in(0, 5), c.one_of<int64_t>({8, 8, 8, 16, 24}), c.in(0, 24)};
  if (c.byte() > 230) s = {c.in(1, 2), 8, c.in(0, 500)};
  if (c.rarely()) s = {1, 128, 3};
  return s;
}

// Section 16, coarsely: keys and queries are of a few units, so an output is at most the largest key value.
template <class Params>
void compare_outputs(const Params& p, const Snapshot& reference, const Snapshot& cpu) {
  constexpr double kLargestKey = 8;
  if (p.output == MEGAMLA_OUTPUT_FP8_PAIR) {
    expect_pair_near("out", p.out, p.out_scale, reference, cpu, 1.1e-3 * kLargestKey);
  } else {
    expect_near("out", p.out, reference, cpu, 1.1e-3 * kLargestKey, 2.01 / 128);
  }
  expect_near("lse", p.lse, reference, cpu, 2e-4, 4.01 / 65536);
}

template <class Params>
void compare_max_logits(const Params&, const Snapshot&, const Snapshot&) {}
void compare_max_logits(const api::PrefillAttention& p, const Snapshot& reference, const Snapshot& cpu) {
  expect_near("max_logits", p.max_logits, reference, cpu, 2e-4, 4.01 / 65536);
}

template <class Params>
void run(OpCall<Params>& call, bool raw_keys) {
  call.run([raw_keys](const Params& p, const Snapshot& reference, const Snapshot& cpu) {
    if (raw_keys) return;
    compare_outputs(p, reference, cpu);
    compare_max_logits(p, reference, cpu);
  });
}

void decode_attention(Choices& c) {
  OpCall<api::DecodeAttention> call("decode_attention", c);
  Views& v = call.views;
  auto& p = call.params;
  const Shape s = draw_shape(c);
  draw_common(call, s.tokens, s.heads);
  const bool raw_keys = c.rarely();
  const Use records = raw_keys ? Use::kOutput : Use::kInput;
  p.window = v.cache(c.coin() ? MEGAMLA_KV_FP8_584 : MEGAMLA_KV_FP8_528, records);
  p.window_slots = v.integers(MEGAMLA_I32, {s.tokens, s.width}, 1, -1, format::num_slots(p.window));
  if (c.coin()) p.window_lens = v.integers(MEGAMLA_I32, {s.tokens}, 1, -1, s.width + 1);
  if (c.coin()) {
    p.compressed = v.cache(p.window.format == MEGAMLA_KV_FP8_584 ? MEGAMLA_KV_FP8_584
                           : c.coin()                            ? MEGAMLA_KV_FP8_528
                                                                 : MEGAMLA_KV_NVFP4_288,
                           records);
    const int64_t width = c.in(0, 24);
    p.compressed_slots = v.integers(MEGAMLA_I32, {s.tokens, width}, 1, -1, format::num_slots(p.compressed));
    if (c.coin()) p.compressed_lens = v.integers(MEGAMLA_I32, {s.tokens}, 1, -1, width + 1);
  }
  p.batch_invariant = c.coin() ? 1 : 0;
  call.inputs({&p.window_slots, &p.window_lens, &p.compressed_slots, &p.compressed_lens});
  call.input(&p.window);
  call.input(&p.compressed);
  call.limits([](const auto& params) {
    megamla_limits limits{};
    limits.tokens = params.q.shape[0];
    limits.heads = params.q.shape[1];
    limits.window_width = params.window_slots.shape[1];
    limits.compressed_width = present(params.compressed) ? params.compressed_slots.shape[1] : 0;
    return limits;
  });
  run(call, raw_keys);
}

void prefill_attention(Choices& c) {
  OpCall<api::PrefillAttention> call("prefill_attention", c);
  Views& v = call.views;
  auto& p = call.params;
  const Shape s = draw_shape(c);
  draw_common(call, s.tokens, s.heads);
  const bool raw_keys = c.rarely();
  const int64_t rows = c.in(0, 30);
  p.kv = host_tensor(nullptr, MEGAMLA_BF16, {rows, 512});
  p.kv.stride[0] = 512 + c.one_of<int64_t>({0, 0, 8, 64});
  p.kv.data = v.memory(bytes_spanned(p.kv), 16, Use::kInput);
  if (!raw_keys) {
    for_each_element(p.kv, [&](uint8_t* element, int64_t) {
      const format::Bf16 value = format::to_bf16(v.gauss());
      std::memcpy(element, &value, sizeof(value));
    });
  }
  p.indices = v.integers(MEGAMLA_I32, {s.tokens, s.width}, 1, -1, rows);
  if (c.coin()) p.topk_length = v.integers(MEGAMLA_I32, {s.tokens}, 1, -1, s.width + 1);
  if (c.coin()) p.max_logits = v.tensor(MEGAMLA_F32, {s.tokens, s.heads}, 2, Use::kOutput);
  call.inputs({&p.kv, &p.indices, &p.topk_length});
  call.outputs({&p.max_logits});
  call.limits([](const auto& params) {
    megamla_limits limits{};
    limits.tokens = params.q.shape[0];
    limits.heads = params.q.shape[1];
    limits.compressed_width = params.indices.shape[1];
    return limits;
  });
  run(call, raw_keys);
}

}  // namespace

void attention(std::span<const uint8_t> decisions) {
  GuardedMemory::instance().reset();
  Choices c(decisions);
  c.coin() ? prefill_attention(c) : decode_attention(c);
}

}  // namespace megamla::fuzz
