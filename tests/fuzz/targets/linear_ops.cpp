// block_scaled_linear, output_cast, rms_norm, permute_weights, rope_table.
#include "fuzz/compare.hpp"
#include "fuzz/op_call.hpp"
#include "fuzz/targets.hpp"
#include "plan/linear_shape.hpp"

namespace megamla::fuzz {
namespace {

// An output pair's scales: [tokens, groups, words] with strides (1, words * A, A). Inputs: exponents around 0.
megamla_tensor packed_scales(Views& v, int64_t tokens, int64_t groups, int64_t words, Use use) {
  const int64_t a = format::round_up(tokens, 4) + v.choices().one_of<int64_t>({0, 0, 4, 8});
  megamla_tensor t = host_tensor(nullptr, MEGAMLA_I32, {tokens, groups, words});
  t.stride[0] = 1;
  t.stride[1] = words * a;
  t.stride[2] = a;
  v.back(t, use);
  if (use == Use::kInput) {
    for_each_element(t, [&](uint8_t* word, int64_t bytes) {
      std::generate_n(word, bytes, [&] { return static_cast<uint8_t>(v.random(121, 128)); });
    });
  }
  return t;
}

// e4m3 codes without NaN.
megamla_tensor codes(Views& v, std::initializer_list<int64_t> shape, int contiguous_from) {
  const megamla_tensor t = v.tensor(MEGAMLA_F8_E4M3, shape, contiguous_from, Use::kInput);
  for_each_element(t, [](uint8_t* code, int64_t) {
    if ((*code & 0x7f) == 0x7f) *code = 0;
  });
  return t;
}

megamla_tensor exponents(Views& v, std::initializer_list<int64_t> shape) {
  const megamla_tensor t = v.tensor(MEGAMLA_F8_E8M0, shape, 0, Use::kInput);
  for_each_element(t, [&](uint8_t* byte, int64_t) { *byte = static_cast<uint8_t>(v.random(116, 130)); });
  return t;
}

void draw_linear_input(Views& v, megamla_block_scaled_linear_params& p, const plan::LinearShape& s) {
  if (p.input == MEGAMLA_LINEAR_IN_BF16) {
    p.x = s.groups == 1 && v.choices().coin() ? v.values(MEGAMLA_BF16, {s.tokens, s.in}, 1)
                                              : v.values(MEGAMLA_BF16, {s.tokens, s.groups, s.in}, 2);
  } else if (p.input == MEGAMLA_LINEAR_IN_FP8_PAIR) {
    p.x = codes(v, {s.tokens, s.groups, s.in}, 2);
    p.x_scale = packed_scales(v, s.tokens, s.groups, s.in / 128, Use::kInput);
  } else {
    p.x = codes(v, {s.tokens, s.in}, 0);
    p.x_scale = exponents(v, {format::f8_128x4_size(s.tokens, s.in / 32)});
  }
}

void draw_linear_output(Views& v, megamla_block_scaled_linear_params& p, const plan::LinearShape& s) {
  if (p.output == MEGAMLA_LINEAR_OUT_MXFP8) {
    p.y = v.tensor(MEGAMLA_F8_E4M3, {s.tokens, s.groups * s.out}, 0, Use::kOutput);
    p.y_scale = v.tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(s.tokens, s.groups * s.out / 32)}, 0, Use::kOutput);
    return;
  }
  const megamla_dtype dtype = p.output == MEGAMLA_LINEAR_OUT_F32 ? MEGAMLA_F32 : MEGAMLA_BF16;
  p.y = s.groups == 1 && v.choices().coin() ? v.tensor(dtype, {s.tokens, s.out}, 1, Use::kOutput)
                                            : v.tensor(dtype, {s.tokens, s.groups, s.out}, 2, Use::kOutput);
}

// Mostly a few; now and then more than the 128 rows of a tile of F8_128x4 scales.
int64_t draw_tokens(Choices& c, int64_t most) {
  const uint8_t byte = c.byte();
  return byte >= 248 ? byte - 120 : byte % (most + 1);
}

// MXFP8: the values, and zeros in the scales that belong to none.
void compare_mxfp8(const megamla_block_scaled_linear_params& p, const Snapshot& reference, const Snapshot& cpu,
                   double absolute) {
  const int64_t groups = p.y.shape[1] / 32;
  std::vector<bool> padding(static_cast<size_t>(p.y_scale.shape[0]), true);
  for (int64_t t = 0; t < p.y.shape[0]; ++t) {
    for (int64_t i = 0; i < p.y.shape[1]; ++i) {
      const int64_t scale = format::f8_128x4_index(groups, t, i / 32);
      padding[static_cast<size_t>(scale)] = false;
      const auto value = [&](const Snapshot& results) {
        return static_cast<double>(format::e4m3_to_float(at<uint8_t>(results.of(p.y), t, i))) *
               format::ue8m0_to_float(at<uint8_t>(results.of(p.y_scale), scale));
      };
      expect_codes_near("block_scaled_linear: y", value(reference), value(cpu), absolute);
    }
  }
  for (int64_t i = 0; i < p.y_scale.shape[0]; ++i) {
    const uint8_t byte = at<uint8_t>(cpu.of(p.y_scale), i);
    require(!padding[static_cast<size_t>(i)] || byte == 0, "block_scaled_linear: y_scale[{}] is padding, got {}", i,
            byte);
  }
}

void block_scaled_linear(Choices& c) {
  OpCall<api::BlockScaledLinear> call("block_scaled_linear", c);
  Views& v = call.views;
  auto& p = call.params;
  p.input = static_cast<int32_t>(c.in(0, 2));
  p.weight_kind = static_cast<int32_t>(c.in(0, 2));
  p.output = static_cast<int32_t>(c.in(0, 2));
  plan::LinearShape s{draw_tokens(c, 20), p.input == MEGAMLA_LINEAR_IN_MXFP8 ? 1 : c.in(1, 3), 0, 0};
  s.in = c.in(1, 5) * (p.input == MEGAMLA_LINEAR_IN_FP8_PAIR ? 128 : 32);
  s.out = p.output == MEGAMLA_LINEAR_OUT_MXFP8              ? c.in(1, 2) * 128
          : p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? c.in(1, 4) * 32
                                                            : c.in(1, 140);
  draw_linear_input(v, p, s);
  if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
    p.weight = v.values(MEGAMLA_BF16, {s.groups, s.out, s.in}, 0);
  } else {
    p.weight = codes(v, {s.groups, s.out, s.in}, 0);
    const int64_t rows = p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BLOCK_32 ? s.out / 32 : s.out;
    p.weight_scale = exponents(v, {s.groups, rows, s.in / 32});
  }
  draw_linear_output(v, p, s);
  call.inputs({&p.x, &p.x_scale, &p.weight, &p.weight_scale});
  call.outputs({&p.y, &p.y_scale});
  call.limits([](const auto& params) {
    const plan::LinearShape shape = plan::linear_shape(params);
    megamla_limits limits{};
    limits.tokens = shape.tokens;
    limits.groups = shape.groups;
    limits.in_features = shape.in;
    limits.out_features = shape.out;
    return limits;
  });
  call.run([](const auto& params, const Snapshot& reference, const Snapshot& cpu) {
    // Products of codes up to 448 * 448 with exponents around 2^0, up to 640 of them, may cancel.
    const double rounding = params.output == MEGAMLA_LINEAR_OUT_F32 ? 1e-5 : 1.0 / 128;
    const double largest = params.input == MEGAMLA_LINEAR_IN_BF16 ? 5.0 : 448.0 * 2;
    const double weight = params.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16 ? 5.0 : 448.0 * 8;
    const double terms = static_cast<double>(params.x.shape[params.x.ndim - 1]);
    const double absolute = 2e-6 * terms * largest * weight;
    if (params.output == MEGAMLA_LINEAR_OUT_MXFP8) return compare_mxfp8(params, reference, cpu, absolute);
    expect_near("block_scaled_linear: y", params.y, reference, cpu, absolute, rounding);
  });
}

void output_cast(Choices& c) {
  OpCall<api::OutputCast> call("output_cast", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t tokens = draw_tokens(c, 9);
  const megamla_dtype dtype = c.coin() ? MEGAMLA_F32 : MEGAMLA_BF16;
  const bool raw = c.rarely();  // NaN, infinities
  p.target = c.coin() ? MEGAMLA_CAST_MXFP8 : MEGAMLA_CAST_ATTENTION_OUTPUT;
  if (p.target == MEGAMLA_CAST_ATTENTION_OUTPUT) {
    const int64_t groups = c.in(0, 2);
    p.in = raw ? v.tensor(dtype, {tokens, groups * 8, 512}, 2, Use::kInput)
               : v.values(dtype, {tokens, groups * 8, 512}, 2);
    p.out = v.tensor(MEGAMLA_F8_E4M3, {tokens, groups, 4096}, 0, Use::kOutput);
    p.out_scale = packed_scales(v, tokens, groups, 32, Use::kOutput);
  } else {
    const int64_t columns = c.in(0, 9) * 32;
    p.in = raw ? v.tensor(dtype, {tokens, columns}, 1, Use::kInput) : v.values(dtype, {tokens, columns}, 1);
    p.out = v.tensor(MEGAMLA_F8_E4M3, {tokens, columns}, 0, Use::kOutput);
    p.out_scale = v.tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(tokens, columns / 32)}, 0, Use::kOutput);
  }
  call.inputs({&p.in});
  call.outputs({&p.out, &p.out_scale});
  call.run();
}

void rms_norm(Choices& c) {
  OpCall<api::RmsNorm> call("rms_norm", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t tokens = c.in(0, 9);
  const int64_t width = c.in(1, 600);
  p.eps = c.coin() ? 1e-20F : 0.0F;
  p.x = v.values(c.coin() ? MEGAMLA_F32 : MEGAMLA_BF16, {tokens, width}, 1);
  p.weight = v.values(MEGAMLA_BF16, {width}, 0);
  p.y = v.tensor(MEGAMLA_BF16, {tokens, width}, 1, Use::kOutput);
  call.inputs({&p.x, &p.weight});
  call.outputs({&p.y});
  call.run([](const auto& params, const Snapshot& reference, const Snapshot& cpu) {
    expect_near("rms_norm: y", params.y, reference, cpu, 1e-30, 1.0 / 128);
  });
}

void permute_weights(Choices& c) {
  OpCall<api::PermuteWeights> call("permute_weights", c);
  Views& v = call.views;
  auto& p = call.params;
  p.kind = static_cast<int32_t>(c.in(0, 5));
  const auto dtype = static_cast<megamla_dtype>(c.in(0, 7));
  const int64_t n = c.in(0, 3);
  const int64_t heads = c.in(0, 3);
  const bool packed = c.coin();
  if (p.kind == MEGAMLA_PERMUTE_WQ_B) {
    const int64_t rows = heads * 512;
    const int64_t scales = c.in(0, 5);
    p.in = v.tensor(MEGAMLA_F8_E4M3, {rows, scales * 32}, 0, Use::kInput);
    p.in_scale = v.tensor(MEGAMLA_F8_E8M0, {rows / 32, scales}, 0, Use::kInput);
    p.out = v.tensor(MEGAMLA_F8_E4M3, {rows, scales * 32}, 0, Use::kOutput);
    p.out_scale = v.tensor(MEGAMLA_F8_E8M0, {rows, scales}, 0, Use::kOutput);
    if (packed) p.out_scale_packed = v.tensor(MEGAMLA_I32, {(scales + 3) / 4, rows}, 0, Use::kOutput);
  } else if (p.kind == MEGAMLA_PERMUTE_WO_A) {
    const int64_t rows = n * 32;
    p.in = v.tensor(MEGAMLA_F8_E4M3, {heads * rows, 4096}, 0, Use::kInput);
    p.in_scale = v.tensor(MEGAMLA_F8_E8M0, {heads * rows / 32, 128}, 0, Use::kInput);
    p.out = v.tensor(MEGAMLA_F8_E4M3, {heads, rows, 4096}, 0, Use::kOutput);
    p.out_scale = v.tensor(MEGAMLA_F8_E8M0, {heads, rows, 128}, 0, Use::kOutput);
    if (packed) p.out_scale_packed = v.tensor(MEGAMLA_I32, {heads, 32, rows}, 0, Use::kOutput);
  } else {
    const int64_t width = p.kind == MEGAMLA_PERMUTE_O ? 4096 : p.kind == MEGAMLA_PERMUTE_O_CHUNKS ? 128 : 512;
    p.in = v.tensor(dtype, {n, heads, width}, 0, Use::kInput);
    p.out = v.tensor(dtype, {n, p.kind == MEGAMLA_PERMUTE_PAD_Q ? heads + c.in(0, 3) : heads, width}, 0, Use::kOutput);
  }
  call.inputs({&p.in, &p.in_scale});
  call.outputs({&p.out, &p.out_scale, &p.out_scale_packed});
  call.run();
}

void rope_table(Choices& c) {
  OpCall<api::RopeTable> call("rope_table", c);
  Views& v = call.views;
  auto& p = call.params;
  const int64_t rows = c.in(0, 20);
  p.theta = c.one_of({10000.0, 160000.0, 1.0000001, 1e300});
  p.factor = c.one_of({1.0, 16.0, 1e300});
  if (c.rarely()) p.original_max_position = static_cast<double>(c.number());
  if (c.rarely()) p.beta_fast = static_cast<double>(c.number());
  p.angles = c.coin() ? MEGAMLA_ROPE_FP32 : MEGAMLA_ROPE_EXACT;
  if (c.coin()) p.positions = v.integers(MEGAMLA_I64, {rows}, 1, 0, 1048575);
  p.cos_sin = v.tensor(MEGAMLA_F32, {rows, 64}, 1, Use::kOutput);
  if (c.coin()) p.inv_freq = v.tensor(MEGAMLA_F64, {32}, 1, Use::kOutput);
  call.inputs({&p.positions});
  call.outputs({&p.cos_sin, &p.inv_freq});
  call.run();
}

}  // namespace

void linear_ops(std::span<const uint8_t> decisions) {
  GuardedMemory::instance().reset();
  Choices c(decisions);
  constexpr void (*kOps[])(Choices&) = {block_scaled_linear, output_cast, rms_norm, permute_weights, rope_table};
  kOps[c.byte() % std::size(kOps)](c);
}

}  // namespace megamla::fuzz
