// permute_*, pad_q, rope_tables: what happens once, at load.
#include <cmath>

#include "check/call_op.hpp"
#include "megamla/permute_weights.h"
#include "megamla/rope_table.h"

namespace megamla::check {
namespace {

constexpr uint8_t kUnwritten = 0xa5;

int64_t bytes_of(const megamla_tensor& t) {
  int64_t bytes = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  for (int d = 0; d < t.ndim; ++d) bytes *= t.shape[d];
  return bytes;
}

megamla_tensor output_like(Run& run, const std::string& name) {
  megamla_tensor t = run.golden.expected(name);
  t.data = run.arena().bytes(bytes_of(t), kUnwritten);
  return t;
}

void equal(Run& run, const std::string& name, const megamla_tensor& got) {
  run.verdict.equal(name, got.data, run.golden.expected(name).data, bytes_of(got));
}

void permute(Run& run, megamla_permute_kind kind, const std::string& in, const std::string& out) {
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = kind;
  p.in = run.golden.input(in);
  p.out = output_like(run, out);
  call_op(run, p, megamla_permute_weights_implementation, megamla_permute_weights);
  equal(run, out, p.out);
}

void permute_scaled(Run& run, megamla_permute_kind kind) {
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = kind;
  p.in = run.golden.input("in.weight");
  p.in_scale = run.golden.input("in.scale");
  p.out = output_like(run, "out.weight");
  p.out_scale = output_like(run, "out.scale_plain");
  p.out_scale_packed = output_like(run, "out.scale_packed");
  call_op(run, p, megamla_permute_weights_implementation, megamla_permute_weights);
  equal(run, "out.weight", p.out);
  equal(run, "out.scale_plain", p.out_scale);
  equal(run, "out.scale_packed", p.out_scale_packed);
}

}  // namespace

void run_permute_q(Run& run) { permute(run, MEGAMLA_PERMUTE_Q, "in.q", "out.q"); }
void run_pad_q(Run& run) { permute(run, MEGAMLA_PERMUTE_PAD_Q, "in.q", "out.q"); }
void run_permute_o(Run& run) {
  permute(run, MEGAMLA_PERMUTE_O, "in.x", "out.x");
  permute(run, MEGAMLA_PERMUTE_O_CHUNKS, "in.chunk", "out.chunk");
}
void run_permute_wq_b(Run& run) { permute_scaled(run, MEGAMLA_PERMUTE_WQ_B); }
void run_permute_wo_a(Run& run) { permute_scaled(run, MEGAMLA_PERMUTE_WO_A); }

void run_rope_tables(Run& run) {
  Case& g = run.golden;
  megamla_rope_table_params p;
  megamla_rope_table_init(&p);
  p.theta = g.number("theta");
  p.factor = g.number("factor");
  p.original_max_position = g.number("original_max_position");
  p.beta_fast = g.number("beta_fast");
  p.beta_slow = g.number("beta_slow");
  p.positions = g.input("in.positions");
  p.cos_sin = run.arena().tensor(MEGAMLA_F32, {p.positions.shape[0], 64}, kUnwritten);
  p.inv_freq = run.arena().tensor(MEGAMLA_F64, {32}, kUnwritten);
  call_op(run, p, megamla_rope_table_implementation, megamla_rope_table);
  const megamla_tensor table = g.expected("out.cos_sin_f64");
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    for (int64_t j = 0; j < 64; ++j) {
      run.verdict.share("table", std::abs(at<const float>(p.cos_sin, i, j) - at<const double>(table, i, j)) / 1.2e-7,
                        fmt::format("row {} column {}", i, j));
    }
  }
  const megamla_tensor frequencies = g.expected("out.inv_freq_f64");
  for (int64_t j = 0; j < 32; ++j) {
    const double ref = at<const double>(frequencies, j);
    run.verdict.share("inv_freq", std::abs(at<const double>(p.inv_freq, j) - ref) / (1e-14 * ref),
                      fmt::format("frequency {}", j));
  }
}

}  // namespace megamla::check
