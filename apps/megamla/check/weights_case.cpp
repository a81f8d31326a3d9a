// permute_*, pad_q, rope_tables: what happens once, at load.
#include <cmath>

#include "check/call_op.hpp"
#include "check/runners.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kAny = Case::kAny;

// A permutation of elements of the stored dtype, three dimensions in and out.
void permute(Run& run, megamla_permute_kind kind, const std::string& in, const std::string& out) {
  api::PermuteWeights p;
  p.kind = kind;
  p.in = run.golden.input(in);
  p.out = output_like(run, out, static_cast<megamla_dtype>(p.in.dtype), {kAny, kAny, kAny});
  call_op(run, p);
  compare_equal(run, out, p.out);
}

// Weight and scale together; `grouped`: the outputs have a leading dimension of groups.
void permute_scaled(Run& run, megamla_permute_kind kind, bool grouped) {
  const auto output = [&](const std::string& name, megamla_dtype dtype, bool with_groups) {
    return with_groups ? output_like(run, name, dtype, {kAny, kAny, kAny})
                       : output_like(run, name, dtype, {kAny, kAny});
  };
  api::PermuteWeights p;
  p.kind = kind;
  p.in = run.golden.input("in.weight");
  p.in_scale = run.golden.input("in.scale");
  p.out = output("out.weight", MEGAMLA_F8_E4M3, grouped);
  p.out_scale = output("out.scale_plain", MEGAMLA_F8_E8M0, grouped);
  p.out_scale_packed = output("out.scale_packed", MEGAMLA_I32, grouped);
  call_op(run, p);
  compare_equal(run, "out.weight", p.out);
  compare_equal(run, "out.scale_plain", p.out_scale);
  compare_equal(run, "out.scale_packed", p.out_scale_packed);
}

}  // namespace

void run_permute_q(Run& run) { permute(run, MEGAMLA_PERMUTE_Q, "in.q", "out.q"); }
void run_pad_q(Run& run) { permute(run, MEGAMLA_PERMUTE_PAD_Q, "in.q", "out.q"); }
void run_permute_o(Run& run) {
  permute(run, MEGAMLA_PERMUTE_O, "in.x", "out.x");
  permute(run, MEGAMLA_PERMUTE_O_CHUNKS, "in.chunk", "out.chunk");
}
void run_permute_wq_b(Run& run) { permute_scaled(run, MEGAMLA_PERMUTE_WQ_B, false); }
void run_permute_wo_a(Run& run) { permute_scaled(run, MEGAMLA_PERMUTE_WO_A, true); }

void run_rope_tables(Run& run) {
  Case& g = run.golden;
  api::RopeTable p;
  p.theta = g.number("theta");
  p.factor = g.number("factor");
  p.original_max_position = g.number("original_max_position");
  p.beta_fast = g.number("beta_fast");
  p.beta_slow = g.number("beta_slow");
  p.positions = g.input("in.positions", MEGAMLA_I64, {kAny});
  const int64_t rows = p.positions.shape[0];
  p.cos_sin = run.arena().tensor(MEGAMLA_F32, {rows, 64}, kUnwritten);
  p.inv_freq = run.arena().tensor(MEGAMLA_F64, {32}, kUnwritten);
  p.inv_freq.cuda_device = -1;
  call_op(run, p);
  const megamla_tensor table = g.expected("out.cos_sin_f64", MEGAMLA_F64, {rows, 64});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < 64; ++j) {
      const double error = std::abs(at<const float>(p.cos_sin, i, j) - at<const double>(table, i, j));
      run.verdict.at_most("table", error / 1.2e-7, [&] { return fmt::format("row {} column {}", i, j); });
    }
  }
  const megamla_tensor frequencies = g.expected("out.inv_freq_f64", MEGAMLA_F64, {32});
  for (int64_t j = 0; j < 32; ++j) {
    const double ref = at<const double>(frequencies, j);
    run.verdict.at_most("inv_freq", std::abs(at<const double>(p.inv_freq, j) - ref) / (1e-14 * ref),
                        [&] { return fmt::format("frequency {}", j); });
  }
}

}  // namespace megamla::check
