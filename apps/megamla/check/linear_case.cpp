// o_proj, cast, mxfp8_quant: the output projection and the casts on its way.
#include <algorithm>
#include <cmath>

#include "check/call_op.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/small_float.hpp"
#include "megamla/block_scaled_linear.h"
#include "megamla/output_cast.h"

namespace megamla::check {
namespace {

constexpr uint8_t kUnwritten = 0xa5;

// z and y as bf16 (docs/golden.md): element by element, and the Frobenius norm of the error.
void compare_bf16_matrix(Run& run, const std::string& rule, const megamla_tensor& got, const double* ref,
                         int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += ref[i] * ref[i];
  const double rms = count > 0 ? std::sqrt(squares / static_cast<double>(count)) : 0;
  double error_squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double error = std::abs(format::to_float(data<const format::Bf16>(got)[i]) - ref[i]);
    error_squares += error * error;
    const double bound = 1.01 / 256 * std::abs(ref[i]) + 1e-3 * rms;
    if (error > 0) run.verdict.share(rule, error / bound, fmt::format("element {}", i));
    if (std::isnan(error)) run.verdict.require(rule, false, fmt::format("element {} is NaN", i));
  }
  if (squares > 0) run.verdict.share(rule + " Frobenius", std::sqrt(error_squares / squares) / 1e-2, "whole tensor");
}

struct OProj {
  explicit OProj(Run& r)
      : run(r),
        tokens(r.golden.integer("tokens")),
        groups(r.golden.integer("groups")),
        d(r.golden.integer("d")),
        n_out(r.golden.integer("n_out")),
        a(r.golden.input("in.a")),
        a_scale(r.golden.input("in.a_sf")),
        z_truth(r.golden.expected("out.z_f64")) {
    const int64_t columns = a_scale.shape[2];
    a_scale = host_tensor(a_scale.data, MEGAMLA_I32, {tokens, groups, 32});
    a_scale.stride[0] = 1;
    a_scale.stride[1] = 32 * columns;
    a_scale.stride[2] = columns;
  }

  megamla_block_scaled_linear_params first() const {
    megamla_block_scaled_linear_params p;
    megamla_block_scaled_linear_init(&p);
    p.input = MEGAMLA_LINEAR_IN_FP8_PAIR;
    p.x = a;
    p.x_scale = a_scale;
    p.weight_kind = MEGAMLA_LINEAR_WEIGHT_ROW_32;
    p.weight = run.golden.input("in.wo_a");
    p.weight_scale = unpack_rows(run.golden.input("in.wo_a_sf"));
    return p;
  }

  // [G, 32, 4 * ceil(d/4)] packed words -> one byte per row and 32 columns.
  megamla_tensor unpack_rows(const megamla_tensor& packed) const {
    const megamla_tensor plain = run.arena().tensor(MEGAMLA_F8_E8M0, {groups, d, 128});
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < d; ++row) {
        for (int64_t k = 0; k < 128; ++k) {
          const format::PackedScale where = format::packed_scale(k);
          const auto word = static_cast<uint32_t>(at<const int32_t>(packed, g, where.word, row));
          at<uint8_t>(plain, g, row, k) = static_cast<uint8_t>(word >> where.shift);
        }
      }
    }
    return plain;
  }

  void workspace(int64_t g, int64_t in, int64_t out) const {
    megamla_limits limits{};
    limits.tokens = tokens;
    limits.groups = g;
    limits.in_features = in;
    limits.out_features = out;
    take_workspace(run, megamla_block_scaled_linear_workspace_size, limits);
  }

  void z_bf16() const {
    megamla_block_scaled_linear_params p = first();
    p.y = run.arena().tensor(MEGAMLA_BF16, {tokens, groups, d}, kUnwritten);
    call_op(run, p, megamla_block_scaled_linear_implementation, megamla_block_scaled_linear);
    compare_bf16_matrix(run, "z", p.y, data<const double>(z_truth), tokens * groups * d);
  }

  void z_mxfp8() const {
    megamla_block_scaled_linear_params p = first();
    const int64_t scales = groups * d / 32;
    p.output = MEGAMLA_LINEAR_OUT_MXFP8;
    p.y = run.arena().tensor(MEGAMLA_F8_E4M3, {tokens, groups * d}, kUnwritten);
    p.y_scale = run.arena().tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(tokens, scales)}, kUnwritten);
    call_op(run, p, megamla_block_scaled_linear_implementation, megamla_block_scaled_linear);
    const megamla_tensor expected_scale = run.golden.expected("out.z_scale");
    double largest = 0;
    double product = 0;
    double squares = 0;
    const double* ref = data<const double>(z_truth);
    for (int64_t i = 0; i < tokens * groups * d; ++i) largest = std::max(largest, std::abs(ref[i]));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < groups * d; ++k) {
        const int64_t at_scale = format::f8_128x4_index(scales, t, k / 32);
        const int byte = data<const uint8_t>(p.y_scale)[at_scale];
        const int want = data<const uint8_t>(expected_scale)[at_scale];
        run.verdict.require("z fp8 exponent", std::abs(byte - want) <= 1, fmt::format("token {} column {}", t, k));
        const double got =
            format::e4m3_to_float(at<const uint8_t>(p.y, t, k)) * format::ue8m0_to_float(static_cast<uint8_t>(byte));
        const double truth = ref[t * groups * d + k];
        const double error = std::abs(got - truth);
        run.verdict.share("z fp8", error == 0 ? 0 : error / std::max(1e-3 * largest, 1.01 / 8 * std::abs(truth)),
                          fmt::format("token {} column {}", t, k));
        product += got * truth;
        squares += got * got + truth * truth;
      }
    }
    if (squares > 0) run.verdict.share("z fp8 cosine", (1 - 2 * product / squares) / 1e-3, "whole tensor");
  }

  // wo_b from the stored z, so that each stage is judged alone.
  void y() const {
    megamla_block_scaled_linear_params p;
    megamla_block_scaled_linear_init(&p);
    p.input = MEGAMLA_LINEAR_IN_MXFP8;
    p.x = run.golden.input("out.z_fp8");
    p.x_scale = run.golden.input("out.z_scale");
    p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
    p.weight = run.golden.input("in.wo_b");
    p.weight_scale = run.golden.input("in.wo_b_scale");
    p.y = run.arena().tensor(MEGAMLA_BF16, {tokens, n_out}, kUnwritten);
    workspace(1, groups * d, n_out);
    call_op(run, p, megamla_block_scaled_linear_implementation, megamla_block_scaled_linear);
    const megamla_tensor truth = run.golden.expected("out.y_f64");
    compare_bf16_matrix(run, "y", p.y, data<const double>(truth), tokens * n_out);
  }

  Run& run;
  int64_t tokens, groups, d, n_out;
  megamla_tensor a, a_scale, z_truth;
};

// Casting is exact: data, and the scale bytes that belong to a value.
void cast_mxfp8(Run& run, const megamla_tensor& in) {
  megamla_output_cast_params p;
  megamla_output_cast_init(&p);
  p.target = MEGAMLA_CAST_MXFP8;
  p.in = in;
  const int64_t columns = in.shape[1] / 32;
  p.out = run.arena().tensor(MEGAMLA_F8_E4M3, {in.shape[0], in.shape[1]}, kUnwritten);
  p.out_scale = run.arena().tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(in.shape[0], columns)}, kUnwritten);
  call_op(run, p, megamla_output_cast_implementation, megamla_output_cast);
  run.verdict.equal("data", p.out.data, run.golden.expected("out.data").data, in.shape[0] * in.shape[1]);
  const megamla_tensor scale = run.golden.expected("out.scale");
  const megamla_tensor written = run.golden.expected("out.scale_written");
  for (int64_t i = 0; i < scale.shape[0]; ++i) {
    if (at<const uint8_t>(written, i) == 0) continue;
    run.verdict.require("scale", at<const uint8_t>(p.out_scale, i) == at<const uint8_t>(scale, i),
                        fmt::format("byte {}", i));
  }
}

void cast_attention_output(Run& run) {
  megamla_output_cast_params p;
  megamla_output_cast_init(&p);
  p.target = MEGAMLA_CAST_ATTENTION_OUTPUT;
  p.in = run.golden.input("in.o");
  const int64_t tokens = p.in.shape[0];
  const int64_t groups = p.in.shape[1] / 8;
  const int64_t a = format::round_up(tokens, 4);
  p.out = run.arena().tensor(MEGAMLA_F8_E4M3, {tokens, groups, 4096}, kUnwritten);
  const megamla_tensor words = run.arena().tensor(MEGAMLA_I32, {groups, 32, a}, kUnwritten);
  p.out_scale = host_tensor(words.data, MEGAMLA_I32, {tokens, groups, 32});
  p.out_scale.stride[0] = 1;
  p.out_scale.stride[1] = 32 * a;
  p.out_scale.stride[2] = a;
  call_op(run, p, megamla_output_cast_implementation, megamla_output_cast);
  run.verdict.equal("data", p.out.data, run.golden.expected("out.fp8").data, tokens * groups * 4096);
  const megamla_tensor expected = run.golden.expected("out.sf");
  for (int64_t i = 0; i < groups * 32 * a; ++i) {
    if (i % a >= tokens) continue;
    run.verdict.require("scale", data<const int32_t>(words)[i] == data<const int32_t>(expected)[i],
                        fmt::format("word {}", i));
  }
}

}  // namespace

void run_o_proj(Run& run) {
  const OProj stage(run);
  stage.workspace(stage.groups, 4096, stage.d);
  stage.z_bf16();
  stage.z_mxfp8();
  stage.y();
}

void run_mxfp8_quant(Run& run) { cast_mxfp8(run, run.golden.input("in.x")); }

void run_cast(Run& run) {
  if (run.golden.text("target") == "z") return cast_mxfp8(run, run.golden.input("in.z"));
  cast_attention_output(run);
}

}  // namespace megamla::check
