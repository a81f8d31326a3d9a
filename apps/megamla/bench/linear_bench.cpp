// block_scaled_linear at the layer's shapes, FP8 weights rotated through sets that no cache holds.
#include <fmt/format.h>

#include <algorithm>

#include "bench/bench.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "megamla/block_scaled_linear.h"

namespace megamla::bench {
namespace {

struct Shape {
  const char* name;
  int64_t groups, in, out;
  megamla_linear_weight kind;
};
constexpr Shape kShapes[] = {{"wo_a", 8, 4096, 1024, MEGAMLA_LINEAR_WEIGHT_ROW_32},
                             {"wo_b", 1, 8192, 5120, MEGAMLA_LINEAR_WEIGHT_BLOCK_32},
                             {"wq_b", 1, 1280, 32768, MEGAMLA_LINEAR_WEIGHT_ROW_32},
                             {"wq_a_wkv", 1, 5120, 1792, MEGAMLA_LINEAR_WEIGHT_BLOCK_32}};

const Shape& find_shape(const std::string& name) {
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return shape;
  }
  throw app::InputError(fmt::format("--case: expected wo_a, wo_b, wq_b or wq_a_wkv, got '{}'", name));
}

void bench_shape(const Options& o, const Shape& s, const Emit& emit) {
  app::Arena weights(o.device());
  const int64_t scale_rows = s.kind == MEGAMLA_LINEAR_WEIGHT_ROW_32 ? s.out : s.out / 32;
  const int64_t sets = std::max<int64_t>(2, kColdBytes / (s.groups * s.in * s.out) + 1);
  std::vector<megamla_tensor> weight;
  std::vector<megamla_tensor> scale;
  for (int64_t i = 0; i < sets; ++i) {
    weight.push_back(weights.tensor(MEGAMLA_F8_E4M3, {s.groups, s.out, s.in}));
    fill_e4m3(weight.back().data, s.groups * s.out * s.in, static_cast<uint64_t>(i));
    scale.push_back(weights.tensor(MEGAMLA_F8_E8M0, {s.groups, scale_rows, s.in / 32}, 115));
  }
  for (const int64_t tokens : o.tokens) {
    app::Arena arena(&weights);
    megamla_exec exec = o.exec;
    megamla_block_scaled_linear_params p;
    megamla_block_scaled_linear_init(&p);
    p.x = arena.tensor(MEGAMLA_BF16, {tokens, s.groups, s.in});
    fill_bf16(p.x.data, tokens * s.groups * s.in, 5);
    if (s.groups > 1) {  // wo_a reads the output pair
      p.input = MEGAMLA_LINEAR_IN_FP8_PAIR;
      const int64_t a = (tokens + 3) / 4 * 4;
      p.x = arena.tensor(MEGAMLA_F8_E4M3, {tokens, s.groups, s.in});
      fill_e4m3(p.x.data, tokens * s.groups * s.in, 5);
      p.x_scale =
          host_tensor(arena.bytes(s.groups * (s.in / 128) * a * 4, 120), MEGAMLA_I32, {tokens, s.groups, s.in / 128});
      p.x_scale.cuda_device = arena.cuda_device();
      p.x_scale.stride[0] = 1;
      p.x_scale.stride[1] = s.in / 128 * a;
      p.x_scale.stride[2] = a;
    }
    p.weight_kind = s.kind;
    p.weight = weight[0];
    p.weight_scale = scale[0];
    p.y = arena.tensor(MEGAMLA_BF16, {tokens, s.groups, s.out});
    megamla_limits limits{};
    limits.tokens = tokens;
    limits.groups = s.groups;
    limits.in_features = s.in;
    limits.out_features = s.out;
    take_workspace(arena, exec, megamla_block_scaled_linear_workspace_size, limits);
    Row row;
    row.cell = {{"op", "block_scaled_linear"}, {"case", s.name}, {"tokens", tokens}};
    row.implementation = implementation(p, exec);
    const auto elements = static_cast<double>(s.groups * s.in * s.out);
    row.flops = 2.0 * static_cast<double>(tokens) * elements;
    row.bytes = elements * (1 + 1.0 / 32) + static_cast<double>(tokens * s.groups * (s.in + s.out) * 2);
    row.seconds = time_calls(o, static_cast<int>(sets), [&](int i) {
      p.weight = weight[static_cast<size_t>(i)];
      p.weight_scale = scale[static_cast<size_t>(i)];
      run_op(arena, p, exec);
    });
    emit(std::move(row));
  }
}

}  // namespace

void bench_block_scaled_linear(const Options& o, const Emit& emit) {
  for (const std::string& name : o.cases) bench_shape(o, find_shape(name), emit);
}

}  // namespace megamla::bench
