// o_proj: the output pair -> z -> y, each stage from the stored input of that stage; and the load-time permutation of
// wo_a where the case has its checkpoint form.
#include <algorithm>
#include <cmath>

#include "check/call_op.hpp"
#include "check/output_pair.hpp"
#include "check/runners.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"
#include "format/small_float.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kIn = 4096;  // per group
constexpr int64_t kScales = kIn / 32;

std::string element(int64_t row, int64_t column) { return fmt::format("token {} column {}", row, column); }

// Sums over a whole tensor.
struct Sums {
  double product = 0, got_squares = 0, ref_squares = 0, error_squares = 0;

  void add(double got, double ref) {
    product += got * ref;
    got_squares += got * got;
    ref_squares += ref * ref;
    error_squares += (got - ref) * (got - ref);
  }
};

// z and y as bf16: element by element, and the Frobenius norm of the error.
void compare_bf16_matrix(Run& run, const std::string& rule, const megamla_tensor& got_rows, const double* ref,
                         int64_t rows, int64_t columns) {
  const int64_t count = rows * columns;
  Sums sums;
  for (int64_t i = 0; i < count; ++i) sums.add(format::to_float(data<const format::Bf16>(got_rows)[i]), ref[i]);
  const double rms = count > 0 ? std::sqrt(sums.ref_squares / static_cast<double>(count)) : 0;
  for (int64_t i = 0; i < count; ++i) {
    const double error = std::abs(format::to_float(data<const format::Bf16>(got_rows)[i]) - ref[i]);
    const double bound = 1.01 / 256 * std::abs(ref[i]) + 1e-3 * rms;
    run.verdict.at_most(rule, error == 0 ? 0 : error / bound, [&] { return element(i / columns, i % columns); });
  }
  if (sums.ref_squares > 0) {
    run.verdict.below(rule + " Frobenius", std::sqrt(sums.error_squares / sums.ref_squares) / 1e-2, "whole tensor");
  }
}

// z as MXFP8, in the scale layout of the next GEMM.
void compare_mxfp8(Run& run, const megamla_tensor& codes, const megamla_tensor& scales,
                   const megamla_tensor& expected_scales, const double* ref) {
  const int64_t rows = codes.shape[0];
  const int64_t columns = codes.shape[1];
  double largest = 0;
  for (int64_t i = 0; i < rows * columns; ++i) largest = std::max(largest, std::abs(ref[i]));
  Sums sums;
  run.verdict.require("z fp8 exponent", true, "");
  for (int64_t i = 0; i < rows * columns; ++i) {
    const auto where = [&] { return element(i / columns, i % columns); };
    const int64_t scale_at = format::f8_128x4_index(columns / 32, i / columns, i % columns / 32);
    const uint8_t byte = data<const uint8_t>(scales)[scale_at];
    const int off = std::abs(int{byte} - int{data<const uint8_t>(expected_scales)[scale_at]});
    run.verdict.require("z fp8 exponent", off <= 1, where);
    const double got =
        static_cast<double>(format::e4m3_to_float(data<const uint8_t>(codes)[i])) * format::ue8m0_to_float(byte);
    const double error = std::abs(got - ref[i]);
    run.verdict.below("z fp8", error == 0 ? 0 : error / std::max(1e-3 * largest, 1.01 / 8 * std::abs(ref[i])), where);
    sums.add(got, ref[i]);
  }
  if (sums.ref_squares > 0) {
    const double cosine = 2 * sums.product / (sums.got_squares + sums.ref_squares);
    run.verdict.below("z fp8 cosine", (1 - cosine) / 1e-3, "whole tensor");
  }
}

class OProj {
 public:
  explicit OProj(Run& r)
      : run_(r),
        g_(r.golden),
        a_(g_.input("in.a", MEGAMLA_F8_E4M3, {Case::kAny, Case::kAny, kIn})),
        tokens_(a_.shape[0]),
        groups_(a_.shape[1]),
        wo_a_(g_.input("in.wo_a", MEGAMLA_F8_E4M3, {groups_, Case::kAny, kIn})),
        d_(wo_a_.shape[1]),
        packed_(g_.input("in.wo_a_sf", MEGAMLA_I32, {groups_, 32, format::round_up(d_, 4)})),
        wo_b_(g_.input("in.wo_b", MEGAMLA_F8_E4M3, {Case::kAny, groups_ * d_})),
        z_truth_(g_.expected("out.z_f64", MEGAMLA_F64, {tokens_, groups_, d_})) {}

  void permutation() {
    if (g_.integer("has_checkpoint_form", 0, 1) == 0) return;
    api::PermuteWeights p;
    p.kind = MEGAMLA_PERMUTE_WO_A;
    p.in = g_.input("in.wo_a_ckpt", MEGAMLA_F8_E4M3, {groups_, d_, kIn});
    p.in = api::tensor(p.in.data, {groups_ * d_, kIn}, MEGAMLA_F8_E4M3, p.in.cuda_device);
    p.in_scale = g_.input("in.wo_a_ckpt_scale", MEGAMLA_F8_E8M0, {groups_, d_ / 32, kScales});
    p.in_scale = api::tensor(p.in_scale.data, {groups_ * d_ / 32, kScales}, MEGAMLA_F8_E8M0, p.in.cuda_device);
    p.out = output_like(run_, "in.wo_a", MEGAMLA_F8_E4M3, {groups_, d_, kIn});
    p.out_scale = run_.arena().tensor(MEGAMLA_F8_E8M0, {groups_, d_, kScales}, kUnwritten);
    p.out_scale_packed = output_like(run_, "in.wo_a_sf", MEGAMLA_I32, {groups_, 32, packed_.shape[2]});
    call_op(run_, p);
    compare_equal(run_, "in.wo_a", p.out);
    compare_equal(run_, "in.wo_a_sf", p.out_scale_packed);
  }

  void z_bf16() {
    api::BlockScaledLinear p = first();
    p.y = run_.arena().tensor(MEGAMLA_BF16, {tokens_, groups_, d_}, kUnwritten);
    call_op(run_, p);
    compare_bf16_matrix(run_, "z", p.y, data<const double>(z_truth_), tokens_, groups_ * d_);
  }

  void z_mxfp8() {
    api::BlockScaledLinear p = first();
    const int64_t columns = groups_ * d_;
    p.output = MEGAMLA_LINEAR_OUT_MXFP8;
    p.y = run_.arena().tensor(MEGAMLA_F8_E4M3, {tokens_, columns}, kUnwritten);
    p.y_scale = run_.arena().tensor(MEGAMLA_F8_E8M0, {format::f8_128x4_size(tokens_, columns / 32)}, kUnwritten);
    call_op(run_, p);
    compare_mxfp8(run_, p.y, p.y_scale, g_.expected("out.z_scale", MEGAMLA_F8_E8M0, {p.y_scale.shape[0]}),
                  data<const double>(z_truth_));
  }

  // wo_b from the stored z.
  void y() {
    const int64_t n_out = wo_b_.shape[0];
    api::BlockScaledLinear p;
    p.input = MEGAMLA_LINEAR_IN_MXFP8;
    p.x = g_.input("out.z_fp8", MEGAMLA_F8_E4M3, {tokens_, groups_ * d_});
    p.x_scale = g_.input("out.z_scale");
    p.weight_kind = MEGAMLA_LINEAR_WEIGHT_BLOCK_32;
    p.weight = wo_b_;
    p.weight_scale = g_.input("in.wo_b_scale");
    p.y = run_.arena().tensor(MEGAMLA_BF16, {tokens_, n_out}, kUnwritten);
    take_linear_workspace(1, groups_ * d_, n_out);
    call_op(run_, p);
    const megamla_tensor truth = g_.expected("out.y_f64", MEGAMLA_F64, {tokens_, n_out});
    compare_bf16_matrix(run_, "y", p.y, data<const double>(truth), tokens_, n_out);
  }

 private:
  api::BlockScaledLinear first() {
    api::BlockScaledLinear p;
    p.input = MEGAMLA_LINEAR_IN_FP8_PAIR;
    p.x = a_;
    p.x_scale = scale_view(g_.input("in.a_sf", MEGAMLA_I32, {groups_, 32, format::round_up(tokens_, 4)}), tokens_);
    p.weight_kind = MEGAMLA_LINEAR_WEIGHT_ROW_32;
    p.weight = wo_a_;
    p.weight_scale = unpacked_scales();
    take_linear_workspace(groups_, kIn, d_);
    return p;
  }

  // in.wo_a_sf as one byte per row and 32 columns.
  megamla_tensor unpacked_scales() {
    const megamla_tensor plain = run_.arena().tensor(MEGAMLA_F8_E8M0, {groups_, d_, kScales});
    for (int64_t i = 0; i < count_of(plain); ++i) {
      const format::PackedScale where = format::packed_scale(i % kScales);
      const auto word =
          static_cast<uint32_t>(at<const int32_t>(packed_, i / kScales / d_, where.word, i / kScales % d_));
      data<uint8_t>(plain)[i] = static_cast<uint8_t>(word >> where.shift);
    }
    return plain;
  }

  void take_linear_workspace(int64_t groups, int64_t in, int64_t out) {
    api::Limits limits;
    limits.tokens = tokens_;
    limits.groups = groups;
    limits.in_features = in;
    limits.out_features = out;
    take_workspace<api::BlockScaledLinear>(run_, limits);
  }

  Run& run_;
  Case& g_;
  megamla_tensor a_;
  int64_t tokens_, groups_;
  megamla_tensor wo_a_;
  int64_t d_;
  megamla_tensor packed_, wo_b_, z_truth_;
};

}  // namespace

void run_o_proj(Run& run) {
  OProj stage(run);
  stage.permutation();
  stage.z_bf16();
  stage.z_mxfp8();
  stage.y();
}

}  // namespace megamla::check
