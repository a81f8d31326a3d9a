// The ops of a ratio-1 layer's decode step, each timed by itself at the step's shapes.
#include "bench/bench.hpp"
#include "check/kv_formats.hpp"
#include "core/tensor.hpp"
#include "megamla/kv_compress.h"
#include "megamla/rms_norm.h"

namespace megamla::bench {
namespace {

constexpr int kCalls = 64;  // of one timing on the GPU; activations are warm in a step, too
constexpr float kEps = 1e-20F;
constexpr int64_t kLatent = 512;

double time_norm(const Options& o, int64_t tokens, int64_t width) {
  app::Arena arena(o.device());
  megamla_rms_norm_params p;
  megamla_rms_norm_init(&p);
  p.eps = kEps;
  p.x = arena.tensor(MEGAMLA_BF16, {tokens, width});
  fill_bf16(p.x.data, tokens * width, 1);
  p.weight = arena.tensor(MEGAMLA_BF16, {width});
  fill_bf16(p.weight.data, width, 2);
  p.y = arena.tensor(MEGAMLA_BF16, {tokens, width});
  return median(time_calls(o, kCalls, [&](int) { run_op(arena, p, o.exec); }));
}

double time_compress(const Options& o, int64_t tokens) {
  app::Arena arena(o.device());
  megamla_kv_compress_params p;
  megamla_kv_compress_init(&p);
  p.compress_ratio = 1;
  p.eps = kEps;
  p.kv_score = arena.tensor(MEGAMLA_F32, {tokens, kLatent}, 0x3f);
  p.weight = arena.tensor(MEGAMLA_BF16, {kLatent});
  fill_bf16(p.weight.data, kLatent, 2);
  p.latent = arena.tensor(MEGAMLA_BF16, {tokens, kLatent});
  return median(time_calls(o, kCalls, [&](int) { run_op(arena, p, o.exec); }));
}

// The one row that an op's benchmark gives for these options.
template <class Bench>
double time_row(const Options& o, const Bench& bench) {
  double seconds = 0;
  bench(o, [&](const Row& row) { seconds = row.median(); });
  return seconds;
}

}  // namespace

std::vector<OpTime> time_step_ops(const Options& options, int64_t heads, int64_t topk, int64_t tokens) {
  Options o = options;
  o.tokens = {tokens};
  o.heads = {heads};
  o.topk = {topk};
  o.output = "fp8";
  std::vector<OpTime> times;
  for (const char* op : {"swa_metadata", "topk_to_slots"}) {
    times.push_back({op, time_row(o, [&](const Options& one, const Emit& emit) { bench_index_ops(one, op, emit); })});
  }
  for (const LinearCase& c : linear_cases(heads)) times.push_back({c.name, time_linear(o, c, tokens).median()});
  times.push_back({"kv_compress", time_compress(o, tokens)});
  times.push_back({"kv_insert_compressed", time_insert(o, o.topk_format, tokens).median()});
  times.push_back({"kv_norm", time_norm(o, tokens, kLatent)});
  times.push_back({"kv_insert_window", time_insert(o, o.window_format, tokens).median()});
  times.push_back({"q_norm", time_norm(o, tokens, 1280)});
  times.push_back({"decode_attention", time_row(o, bench_decode_attention)});
  return times;
}

}  // namespace megamla::bench
