// compress: the compressor step by step, its latent rows and its state ring after each step.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/call_op.hpp"
#include "format/bf16.hpp"
#include "megamla/kv_compress.h"

namespace megamla::check {
namespace {

constexpr uint8_t kUnwritten = 0xa5;
constexpr int64_t kDims = 512;

void compare_rows(Run& run, const megamla_tensor& latent, const megamla_tensor& written) {
  const megamla_tensor expected = run.golden.expected("out.latent_f64");
  const megamla_tensor flags = run.golden.expected("out.written");
  run.verdict.equal("written", written.data, flags.data, flags.shape[0]);
  for (int64_t t = 0; t < expected.shape[0]; ++t) {
    if (at<const uint8_t>(flags, t) == 0) continue;
    const double* ref = &at<const double>(expected, t, 0);
    double squares = 0;
    for (int64_t d = 0; d < kDims; ++d) squares += ref[d] * ref[d];
    const double rms = std::sqrt(squares / kDims);
    for (int64_t d = 0; d < kDims; ++d) {
      const double got = format::to_float(at<const format::Bf16>(latent, t, d));
      const double bound = 1.01 / 256 * std::abs(ref[d]) + 1e-5 * rms + 1e-30;
      run.verdict.share("latent", std::abs(got - ref[d]) / bound, fmt::format("token {} dim {}", t, d));
    }
  }
}

// Rows in use after a step equal their token's scores; all others still hold the initial value.
class StateRule {
 public:
  StateRule(Run& run, const megamla_tensor& state, const megamla_tensor& scores, float initial)
      : run_(run), state_(state), scores_(scores), rows_(run.golden.expected("out.state_rows")), initial_(initial) {}

  void check(int64_t step) {
    const int64_t width = state_.shape[2];
    std::vector<const float*> owner(static_cast<size_t>(state_.shape[0] * state_.shape[1]), nullptr);
    for (int64_t i = 0; i < rows_.shape[0]; ++i) {
      if (at<const int64_t>(rows_, i, 0) != step) continue;
      owner.at(static_cast<size_t>(at<const int64_t>(rows_, i, 1))) =
          &at<const float>(scores_, at<const int64_t>(rows_, i, 2), 0);
    }
    for (size_t row = 0; row < owner.size(); ++row) {
      const float* got = data<const float>(state_) + static_cast<int64_t>(row) * width;
      const bool holds = owner[row] != nullptr
                             ? std::memcmp(got, owner[row], static_cast<size_t>(width) * sizeof(float)) == 0
                             : std::all_of(got, got + width, [&](float x) { return x == initial_; });
      run_.verdict.require("state", holds, fmt::format("row {} after step {}", row, step));
    }
  }

 private:
  Run& run_;
  megamla_tensor state_, scores_, rows_;
  float initial_;
};

}  // namespace

void run_compress(Run& run) {
  Case& g = run.golden;
  megamla_kv_compress_params p;
  megamla_kv_compress_init(&p);
  p.compress_ratio = static_cast<int32_t>(g.integer("compress_ratio"));
  p.eps = static_cast<float>(g.number("eps"));
  const megamla_tensor scores = g.input("in.kv_score");
  const int64_t tokens = scores.shape[0];
  p.weight = g.input("in.weight");
  const megamla_tensor latent = run.arena().tensor(MEGAMLA_BF16, {tokens, kDims}, kUnwritten);
  const megamla_tensor written = run.arena().tensor(MEGAMLA_U8, {tokens}, kUnwritten);
  megamla_limits limits{};
  limits.tokens = tokens;
  take_workspace(run, megamla_kv_compress_workspace_size, limits);
  if (p.compress_ratio == 1) {
    p.kv_score = scores;
    p.latent = latent;
    p.written = written;
    call_op(run, p, megamla_kv_compress_implementation, megamla_kv_compress);
    return compare_rows(run, latent, written);
  }
  const megamla_tensor requests = g.input("in.token_req");
  const megamla_tensor positions = g.input("in.positions");
  const megamla_tensor steps = g.input("in.step_offsets");
  p.state_block = g.input("in.req_block");
  p.state = run.arena().tensor(MEGAMLA_F32, {g.integer("num_blocks"), g.integer("capacity"), 2 * kDims});
  const auto initial = static_cast<float>(g.number("state_init"));
  std::fill_n(data<float>(p.state), p.state.shape[0] * p.state.shape[1] * p.state.shape[2], initial);
  StateRule rule(run, p.state, scores, initial);
  for (int64_t step = 0; step + 1 < steps.shape[0]; ++step) {
    const int64_t begin = at<const int32_t>(steps, step);
    const int64_t end = at<const int32_t>(steps, step + 1);
    p.kv_score = slice(scores, begin, end);
    p.token_to_req = slice(requests, begin, end);
    p.positions = slice(positions, begin, end);
    p.latent = slice(latent, begin, end);
    p.written = slice(written, begin, end);
    call_op(run, p, megamla_kv_compress_implementation, megamla_kv_compress);
    rule.check(step);
  }
  compare_rows(run, latent, written);
}

}  // namespace megamla::check
