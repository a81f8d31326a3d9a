// block_scaled_linear at the layer's shapes, weights rotated through sets that no cache holds.
#include <fmt/format.h>

#include <algorithm>

#include "bench/bench.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "cublaslt.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla::bench {
namespace {

constexpr int64_t kHeads = 64;  // tensor parallelism 1

LinearCase find_case(const std::string& name) {
  for (const LinearCase& c : linear_cases(kHeads)) {
    if (name == c.name) return c;
  }
  throw app::InputError(fmt::format("--case: expected wo_a, wo_b, wq_b, wq_a_wkv or compressor, got '{}'", name));
}

int64_t sets_of(const LinearCase& c, int64_t element) {
  return std::max<int64_t>(2, kColdBytes / (c.groups * c.in * c.out * element) + 1);
}

struct Weights {
  std::vector<megamla_tensor> weight, scale;
};
Weights make_weights(app::Arena& arena, const LinearCase& c) {
  Weights w;
  const bool bf16 = c.kind == MEGAMLA_LINEAR_WEIGHT_BF16;
  const int64_t scale_rows = c.kind == MEGAMLA_LINEAR_WEIGHT_ROW_32 ? c.out : c.out / 32;
  const int64_t count = c.groups * c.in * c.out;
  for (int64_t i = 0; i < sets_of(c, bf16 ? 2 : 1); ++i) {
    w.weight.push_back(arena.tensor(bf16 ? MEGAMLA_BF16 : MEGAMLA_F8_E4M3, {c.groups, c.out, c.in}));
    if (bf16) {
      fill_bf16(w.weight.back().data, count, static_cast<uint64_t>(i));
      w.scale.emplace_back();
    } else {
      fill_e4m3(w.weight.back().data, count, static_cast<uint64_t>(i));
      w.scale.push_back(arena.tensor(MEGAMLA_F8_E8M0, {c.groups, scale_rows, c.in / 32}, 115));
    }
  }
  return w;
}

Row time_case(const Options& o, app::Arena& weights, const Weights& w, const LinearCase& c, int64_t tokens) {
  app::Arena arena(&weights);
  megamla_exec exec = o.exec;
  megamla_block_scaled_linear_params p;
  megamla_block_scaled_linear_init(&p);
  if (c.fp8_pair) {
    p.input = MEGAMLA_LINEAR_IN_FP8_PAIR;
    const int64_t a = (tokens + 3) / 4 * 4;
    p.x = arena.tensor(MEGAMLA_F8_E4M3, {tokens, c.groups, c.in});
    fill_e4m3(p.x.data, tokens * c.groups * c.in, 5);
    p.x_scale =
        host_tensor(arena.bytes(c.groups * (c.in / 128) * a * 4, 120), MEGAMLA_I32, {tokens, c.groups, c.in / 128});
    p.x_scale.cuda_device = arena.cuda_device();
    p.x_scale.stride[0] = 1;
    p.x_scale.stride[1] = c.in / 128 * a;
    p.x_scale.stride[2] = a;
  } else {
    p.x = arena.tensor(MEGAMLA_BF16, {tokens, c.groups, c.in});
    fill_bf16(p.x.data, tokens * c.groups * c.in, 5);
  }
  p.weight_kind = c.kind;
  p.output = c.f32_output ? MEGAMLA_LINEAR_OUT_F32 : MEGAMLA_LINEAR_OUT_BF16;
  p.y = arena.tensor(c.f32_output ? MEGAMLA_F32 : MEGAMLA_BF16, {tokens, c.groups, c.out});
  const auto choose = [&](int i) {
    p.weight = w.weight[static_cast<size_t>(i)];
    p.weight_scale = w.scale[static_cast<size_t>(i)];
  };
  choose(0);
  megamla_limits limits{};
  limits.tokens = tokens;
  limits.groups = c.groups;
  limits.in_features = c.in;
  limits.out_features = c.out;
  take_workspace(arena, exec, megamla_block_scaled_linear_workspace_size, limits);
  Row row;
  row.cell = {{"op", "block_scaled_linear"}, {"case", c.name}, {"tokens", tokens}};
  row.implementation = implementation(p, exec);
  const auto elements = static_cast<double>(c.groups * c.in * c.out);
  row.flops = 2.0 * static_cast<double>(tokens) * elements;
  row.bytes = elements * (c.kind == MEGAMLA_LINEAR_WEIGHT_BF16 ? 2 : 1 + 1.0 / 32) +
              static_cast<double>(tokens * c.groups * (c.in + c.out) * 2);
  row.seconds = time_calls(o, static_cast<int>(w.weight.size()), [&](int i) {
    choose(i);
    run_op(arena, p, exec);
  });
  return row;
}

// The same product by cuBLASLt, weights and x in bf16.
void bench_peer(const Options& o, const LinearCase& c, const Emit& emit) {
  Inputs weights(o.device());
  std::vector<void*> weight;
  const int64_t count = c.groups * c.in * c.out;
  for (int64_t i = 0; i < sets_of(c, 2); ++i) {
    weight.push_back(weights.bytes(count * 2));
    fill_bf16(weight.back(), count, static_cast<uint64_t>(i));
  }
  for (const int64_t tokens : o.tokens) {
    app::Arena arena(&weights);
    void* x = arena.bytes(tokens * c.groups * c.in * 2);
    fill_bf16(x, tokens * c.groups * c.in, 5);
    void* y = arena.bytes(tokens * c.groups * c.out * 2);
    const app::cublaslt::Product product({tokens, c.groups, c.in, c.out});
    Row row;
    row.cell = {{"op", "peer_linear_bf16"}, {"case", c.name}, {"tokens", tokens}};
    row.implementation = "cublasLt";
    row.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(count);
    row.bytes = static_cast<double>(count * 2 + tokens * c.groups * (c.in + c.out) * 2);
    row.seconds = time_calls(o, static_cast<int>(weight.size()), [&](int i) {
      product.run(arena.on_device(x), arena.on_device(weight[static_cast<size_t>(i)]), arena.on_device(y));
    });
    emit(std::move(row));
  }
}

}  // namespace

std::vector<LinearCase> linear_cases(int64_t heads) {
  return {{"wo_a", heads / 8, 4096, 1024, MEGAMLA_LINEAR_WEIGHT_ROW_32, true, false},
          {"wo_b", 1, heads * 128, 5120, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, false, false},
          {"wq_b", 1, 1280, heads * 512, MEGAMLA_LINEAR_WEIGHT_ROW_32, false, false},
          {"wq_a_wkv", 1, 5120, 1792, MEGAMLA_LINEAR_WEIGHT_BLOCK_32, false, false},
          {"compressor", 1, 5120, 512, MEGAMLA_LINEAR_WEIGHT_BF16, false, true}};
}

Row time_linear(const Options& o, const LinearCase& linear_case, int64_t tokens) {
  app::Arena arena(o.device());
  return time_case(o, arena, make_weights(arena, linear_case), linear_case, tokens);
}

void bench_block_scaled_linear(const Options& o, const Emit& emit) {
  if (o.peer && o.device() != MEGAMLA_DEVICE_CUDA)
    throw app::InputError("--peer: expected --device cuda, which has a peer of block_scaled_linear");
  for (const std::string& name : o.cases) {
    const LinearCase c = find_case(name);
    {
      app::Arena arena(o.device());
      const Weights w = make_weights(arena, c);
      for (const int64_t tokens : o.tokens) emit(time_case(o, arena, w, c, tokens));
    }
    if (!o.peer) continue;
    try {
      bench_peer(o, c, emit);
    } catch (const app::InputError& error) {  // the op's own rows are no worse for it
      fmt::print(stderr, "bench: no peer of {}: {}\n", c.name, error.what());
    }
  }
}

}  // namespace megamla::bench
