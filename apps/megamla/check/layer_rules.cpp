#include "check/layer_rules.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/attention_rules.hpp"
#include "check/output_pair.hpp"
#include "format/bf16.hpp"
#include "format/chunked.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kDims = 512;

// A stored index that the comparison itself follows.
void expect_index(Run& run, const char* name, int64_t index, int64_t limit) {
  if (index < 0 || index >= limit)
    run.golden.refuse(name, fmt::format("an index in [0, {})", limit), fmt::format("{}", index));
}

double bf16_at(const megamla_tensor& t, int64_t i, int64_t j) {
  return format::to_float(at<const format::Bf16>(t, i, j));
}

// Judges rows against a reference: |err| <= relative * |ref| + absolute * rms(ref row), ||err|| <= l2 * ||ref||.
class RowRule {
 public:
  RowRule(Run& run, std::string rule, double relative, double absolute, double l2)
      : run_(run), rule_(std::move(rule)), relative_(relative), absolute_(absolute), l2_(l2) {}

  template <class Got, class Ref>
  void row(int64_t width, Got&& got, Ref&& ref, const std::string& where) {
    double squares = 0;
    double error_squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += ref(i) * ref(i);
    const double rms = std::sqrt(squares / static_cast<double>(width));
    double worst = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double error = std::abs(got(i) - ref(i));
      error_squares += error * error;
      const double share = error == 0 ? 0 : error / (relative_ * std::abs(ref(i)) + absolute_ * rms);
      worst = std::isnan(share) ? INFINITY : std::max(worst, share);
      same_ += error == 0 ? 1 : 0;
    }
    total_ += width;
    run_.verdict.at_most(rule_, worst, where);
    if (l2_ > 0 && squares > 0) run_.verdict.at_most(rule_ + " L2", std::sqrt(error_squares / squares) / l2_, where);
  }
  // At least 97% of the elements have the reference's bits.
  void same_bits() const {
    if (total_ > 0) {
      run_.verdict.at_most(rule_ + " bits", static_cast<double>(total_ - same_) / (0.03 * static_cast<double>(total_)),
                           "all rows");
    }
  }

 private:
  Run& run_;
  std::string rule_;
  double relative_, absolute_, l2_;
  int64_t same_ = 0;
  int64_t total_ = 0;
};

void compare_projections(Run& run, const LayerResults& r, const std::vector<int64_t>& rows) {
  const megamla_tensor index = run.golden.input("in.x_index", MEGAMLA_I32, {Case::kAny});
  for (const auto& [name, got] : {std::pair{"qr", &r.qr}, std::pair{"latent", &r.latent}}) {
    const megamla_tensor ref = run.golden.input(std::string("out.") + name, MEGAMLA_BF16,
                                                {run.golden.input("in.x_rows").shape[0], got->shape[1]});
    RowRule rule(run, name, 4.04 / 256, 1e-3, 0);
    for (const int64_t t : rows) {
      const int64_t x = at<const int32_t>(index, t);
      rule.row(
          ref.shape[1], [&, g = got](int64_t i) { return bf16_at(*g, t, i); },
          [&](int64_t i) { return bf16_at(ref, x, i); }, fmt::format("row {}", t));
    }
    rule.same_bits();
  }
  if (!run.golden.has("out.compressed_latent")) return;
  const megamla_tensor tokens = run.golden.input("out.compressed_token", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor ref = run.golden.input("out.compressed_latent", MEGAMLA_BF16, {tokens.shape[0], kDims});
  RowRule rule(run, "compressed latent", 2.02 / 256, 1e-3, 0);
  for (int64_t i = 0; i < tokens.shape[0]; ++i) {
    const int64_t t = at<const int32_t>(tokens, i);
    rule.row(
        kDims, [&](int64_t d) { return bf16_at(r.compressed_latent, t, d); },
        [&](int64_t d) { return bf16_at(ref, i, d); }, fmt::format("row {}", t));
  }
  rule.same_bits();
}

void compare_all_lse(Run& run, const LayerResults& r) {
  const megamla_tensor ref = run.golden.input("out.lse", MEGAMLA_F32, {r.lse.shape[0], r.lse.shape[1]});
  double squares = 0;
  int64_t count = 0;
  for (int64_t t = 0; t < ref.shape[0]; ++t) {
    for (int64_t h = 0; h < ref.shape[1]; ++h) {
      const double want = at<const float>(ref, t, h);
      const double got = at<const float>(r.lse, t, h);
      if (std::isinf(want)) {
        run.verdict.require("lse", got == want, fmt::format("row {} head {}: expected {}, found {}", t, h, want, got));
        continue;
      }
      run.verdict.at_most("lse", std::abs(got - want) / 2e-2, fmt::format("row {} head {}", t, h));
      squares += (got - want) * (got - want);
      ++count;
    }
  }
  if (count > 0) run.verdict.at_most("lse rms", std::sqrt(squares / static_cast<double>(count)) / 1.5e-3, "all rows");
}

void compare_pair_of(Run& run, const LayerResults& r, int64_t pick, int64_t t) {
  const megamla_tensor o = run.golden.input("out.o", MEGAMLA_F32, {Case::kAny, r.lse.shape[1], kDims});
  const megamla_tensor scales = run.golden.input("out.pair_scale", MEGAMLA_F8_E8M0, {o.shape[0], o.shape[1] / 8, 128});
  double product = 0;
  double squares = 0;
  for (int64_t h = 0; h < o.shape[1]; ++h) {
    float got[kDims];
    uint8_t bytes[kDims / 32];
    dequantise_head(r.pair, r.pair_scale, t, h, got, bytes);
    const float* ref = &at<const float>(o, pick, h, 0);
    double error_squares = 0;
    double ref_squares = 0;
    for (int64_t d = 0; d < kDims; ++d) {
      error_squares += (got[d] - ref[d]) * (got[d] - ref[d]);
      ref_squares += ref[d] * ref[d];
      product += got[d] * ref[d];
      squares += got[d] * got[d] + ref[d] * ref[d];
    }
    const std::string where = fmt::format("row {} head {}", t, h);
    if (ref_squares > 0) run.verdict.at_most("pair L2", std::sqrt(error_squares / ref_squares) / 0.05, where);
    for (int64_t c = 0; c < kDims / 32; ++c) {
      const int want = at<const uint8_t>(scales, pick, h / 8, c * 8 + h % 8);
      run.verdict.require("pair exponent", std::abs(bytes[c] - want) <= 1, where);
    }
  }
  run.verdict.at_most("pair cosine", (1 - 2 * product / squares) / 1e-3, fmt::format("row {}", t));
}

void compare_picks(Run& run, const LayerResults& r) {
  const megamla_tensor picks = run.golden.input("out.pick", MEGAMLA_I32, {run.golden.input("out.o").shape[0]});
  const megamla_tensor q = run.golden.input("out.q", MEGAMLA_BF16, {picks.shape[0], r.q.shape[1], kDims});
  const megamla_tensor z = run.golden.input("out.z", MEGAMLA_F32, {picks.shape[0], r.z.shape[1], r.z.shape[2]});
  const megamla_tensor y = run.golden.input("out.y", MEGAMLA_F32, {picks.shape[0], r.y.shape[1]});
  RowRule q_rule(run, "q", 3.03 / 256, 1e-2, 8e-3);
  RowRule z_rule(run, "z", 1.0 / 256, 0.15, 2e-2);
  RowRule y_rule(run, "y", 1.0 / 256, 0.1, 2e-2);
  const int64_t heads = q.shape[1];
  for (int64_t i = 0; i < picks.shape[0]; ++i) {
    const int64_t t = at<const int32_t>(picks, i);
    expect_index(run, "out.pick", t, r.y.shape[0]);
    const std::string where = fmt::format("row {}", t);
    const auto* got_q = &at<const format::Bf16>(r.q, t, 0);
    for (int64_t h = 0; h < heads; ++h) {
      q_rule.row(
          kDims, [&](int64_t d) { return double{format::to_float(got_q[format::q_chunked_index(heads, h, d)])}; },
          [&](int64_t d) { return double{format::to_float(at<const format::Bf16>(q, i, h, d))}; },
          fmt::format("row {} head {}", t, h));
    }
    compare_pair_of(run, r, i, t);
    const auto* got_z = &at<const format::Bf16>(r.z, t, 0);
    const float* ref_z = &at<const float>(z, i, 0);
    z_rule.row(
        z.shape[1] * z.shape[2], [&](int64_t k) { return double{format::to_float(got_z[k])}; },
        [&](int64_t k) { return double{ref_z[k]}; }, where);
    y_rule.row(
        y.shape[1], [&](int64_t k) { return double{at<const float>(r.y, t, k)}; },
        [&](int64_t k) { return double{at<const float>(y, i, k)}; }, where);
  }
}

void compare_y_part(Run& run, const LayerResults& r, const std::vector<int64_t>& rows) {
  const megamla_tensor columns = run.golden.input("out.y_column", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor ref = run.golden.input("out.y_part", MEGAMLA_F32, {r.y.shape[0], columns.shape[0]});
  for (int64_t k = 0; k < columns.shape[0]; ++k)
    expect_index(run, "out.y_column", at<const int32_t>(columns, k), r.y.shape[1]);
  RowRule rule(run, "y_part", 1.0 / 256, 0.1, 3e-2);
  for (const int64_t t : rows) {
    rule.row(
        columns.shape[0], [&](int64_t k) { return double{at<const float>(r.y, t, at<const int32_t>(columns, k))}; },
        [&](int64_t k) { return double{at<const float>(ref, t, k)}; }, fmt::format("row {}", t));
  }
  for (int64_t t = 0; t < r.y.shape[0]; ++t) {
    if (std::find(rows.begin(), rows.end(), t) != rows.end()) continue;
    const float* row = &at<const float>(r.y, t, 0);
    run.verdict.require("padding", std::all_of(row, row + r.y.shape[1], [](float v) { return v == 0; }),
                        fmt::format("row {} of y", t));
  }
}

}  // namespace

megamla_layer_taps LayerResults::taps(int64_t begin, int64_t end) const {
  megamla_layer_taps t;
  megamla_layer_taps_init(&t);
  t.qr = slice(qr, begin, end);
  t.latent = slice(latent, begin, end);
  t.compressed_latent = slice(compressed_latent, begin, end);
  t.q = slice(q, begin, end);
  t.lse = slice(lse, begin, end);
  t.pair = slice(pair, begin, end);
  t.pair_scale = slice(pair_scale, begin, end);
  t.z = slice(z, begin, end);
  return t;
}

LayerResults make_results(app::Arena& arena, int64_t tokens, const io::ModelConfig& model, int64_t tp) {
  const int64_t heads = model.num_attention_heads / tp;
  const int64_t groups = model.o_groups / tp;
  const int64_t a = format::round_up(tokens, 4);
  LayerResults r;
  r.qr = arena.tensor(MEGAMLA_BF16, {tokens, model.q_lora_rank});
  r.latent = arena.tensor(MEGAMLA_BF16, {tokens, kDims});
  r.compressed_latent = arena.tensor(MEGAMLA_BF16, {tokens, kDims});
  r.q = arena.tensor(MEGAMLA_BF16, {tokens, heads, kDims});
  r.lse = arena.tensor(MEGAMLA_F32, {tokens, heads});
  r.pair = arena.tensor(MEGAMLA_F8_E4M3, {tokens, groups, 4096});
  r.pair_scale = scale_view(arena.tensor(MEGAMLA_I32, {groups, 32, a}), tokens);
  r.z = arena.tensor(MEGAMLA_BF16, {tokens, groups, model.o_lora_rank});
  r.y = arena.tensor(MEGAMLA_F32, {tokens, model.hidden_size}, 0xa5);
  return r;
}

void compare_layer(Run& run, const LayerResults& results, const std::vector<int64_t>& real_rows) {
  compare_projections(run, results, real_rows);
  compare_all_lse(run, results);
  compare_picks(run, results);
  compare_y_part(run, results, real_rows);
}

void compare_rank(Run& run, const megamla_tensor& y, int64_t rank) {
  const megamla_tensor picks = run.golden.input("out.rank_pick", MEGAMLA_I32, {Case::kAny});
  const megamla_tensor ref =
      run.golden.input("out.y_rank", MEGAMLA_F32, {run.golden.integer("tp_size"), picks.shape[0], y.shape[1]});
  RowRule rule(run, fmt::format("y of rank {}", rank), 1.0 / 256, 0.1, 2e-2);
  for (int64_t i = 0; i < picks.shape[0]; ++i) {
    const int64_t t = at<const int32_t>(picks, i);
    rule.row(
        y.shape[1], [&](int64_t k) { return double{at<const float>(y, t, k)}; },
        [&](int64_t k) { return double{at<const float>(ref, rank, i, k)}; }, fmt::format("row {}", t));
  }
}

}  // namespace megamla::check
