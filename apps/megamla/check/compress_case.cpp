// compress: the compressor step by step, its latent rows and its state ring after each step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check/call_op.hpp"
#include "check/runners.hpp"
#include "format/bf16.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kDims = 512;

// Rows that close a group within the bound; all others as they were.
void compare_rows(Run& run, const megamla_tensor& latent, const megamla_tensor& written) {
  const int64_t tokens = latent.shape[0];
  const megamla_tensor expected = run.golden.expected("out.latent_f64", MEGAMLA_F64, {tokens, kDims});
  const megamla_tensor flags = run.golden.expected("out.written", MEGAMLA_U8, {tokens});
  compare_equal(run, "out.written", written);
  for (int64_t t = 0; t < tokens; ++t) {
    if (at<const uint8_t>(flags, t) == 0) {
      const uint8_t* bytes = data<const uint8_t>(latent) + t * kDims * 2;
      run.verdict.require("open group",
                          std::all_of(bytes, bytes + kDims * 2, [](uint8_t b) { return b == kUnwritten; }),
                          [&] { return fmt::format("latent row {} was written", t); });
      continue;
    }
    const double* ref = &at<const double>(expected, t, 0);
    double squares = 0;
    for (int64_t d = 0; d < kDims; ++d) squares += ref[d] * ref[d];
    const double rms = std::sqrt(squares / kDims);
    for (int64_t d = 0; d < kDims; ++d) {
      const double got = format::to_float(at<const format::Bf16>(latent, t, d));
      const double bound = 1.01 / 256 * std::abs(ref[d]) + 1e-5 * rms + 1e-30;
      run.verdict.at_most("latent", std::abs(got - ref[d]) / bound,
                          [&] { return fmt::format("token {} dim {}", t, d); });
    }
  }
}

// The state ring: rows in use after a step equal their token's scores bit for bit; all others hold the initial value.
class StateRule {
 public:
  StateRule(Run& run, const megamla_tensor& state, const megamla_tensor& scores)
      : run_(run),
        state_(state),
        scores_(scores),
        rows_(run.golden.expected("out.state_rows", MEGAMLA_I64, {Case::kAny, 3})),
        initial_(static_cast<float>(run.golden.number("state_init"))) {
    std::fill_n(data<float>(state_), count_of(state_), initial_);
  }

  void check(int64_t step) {
    const int64_t slots = state_.shape[0] * state_.shape[1];
    const int64_t width = state_.shape[2];
    std::vector<const float*> owner(static_cast<size_t>(slots), nullptr);
    for (int64_t i = 0; i < rows_.shape[0]; ++i) {
      if (at<const int64_t>(rows_, i, 0) != step) continue;
      const int64_t slot = at<const int64_t>(rows_, i, 1);
      const int64_t token = at<const int64_t>(rows_, i, 2);
      if (slot < 0 || slot >= slots || token < 0 || token >= scores_.shape[0]) {
        run_.golden.refuse("out.state_rows", "a state row and a token", fmt::format("{}, {}", slot, token));
      }
      owner[static_cast<size_t>(slot)] = &at<const float>(scores_, token, 0);
    }
    const std::vector<float> initial(static_cast<size_t>(width), initial_);
    for (int64_t row = 0; row < slots; ++row) {
      const float* expected = owner[static_cast<size_t>(row)];
      if (expected == nullptr) expected = initial.data();
      const bool holds =
          std::memcmp(data<const float>(state_) + row * width, expected, static_cast<size_t>(width) * 4) == 0;
      run_.verdict.require("state", holds, [&] { return fmt::format("row {} after step {}", row, step); });
    }
  }

 private:
  Run& run_;
  megamla_tensor state_, scores_, rows_;
  float initial_;
};

// Ratio 2: step by step on one state.
void run_steps(Run& run, api::KvCompress p) {
  Case& g = run.golden;
  const megamla_tensor scores = p.kv_score, latent = p.latent, written = p.written;
  const int64_t tokens = scores.shape[0];
  const megamla_tensor requests = g.input("in.token_req", MEGAMLA_I32, {tokens});
  const megamla_tensor positions = g.input("in.positions", MEGAMLA_I64, {tokens});
  const megamla_tensor steps = g.expected("in.step_offsets", MEGAMLA_I32, {Case::kAny});
  p.state_block = g.input("in.req_block");
  p.state = run.arena().tensor(MEGAMLA_F32, {g.integer("num_blocks"), g.integer("capacity"), 2 * kDims});
  StateRule rule(run, p.state, scores);
  for (int64_t step = 0; step + 1 < steps.shape[0]; ++step) {
    const int64_t begin = at<const int32_t>(steps, step);
    const int64_t end = at<const int32_t>(steps, step + 1);
    if (begin < 0 || end < begin || end > tokens) {
      g.refuse("in.step_offsets", fmt::format("steps within {} tokens", tokens), fmt::format("{} .. {}", begin, end));
    }
    p.kv_score = slice(scores, begin, end);
    p.token_to_req = slice(requests, begin, end);
    p.positions = slice(positions, begin, end);
    p.latent = slice(latent, begin, end);
    p.written = slice(written, begin, end);
    call_op(run, p);
    rule.check(step);
  }
}

}  // namespace

void run_compress(Run& run) {
  Case& g = run.golden;
  api::KvCompress p;
  p.compress_ratio = static_cast<int32_t>(g.integer("compress_ratio", 1, 2));
  p.eps = static_cast<float>(g.number("eps"));
  p.kv_score = g.input("in.kv_score", MEGAMLA_F32, {Case::kAny, p.compress_ratio * kDims});
  p.weight = g.input("in.weight");
  api::Limits limits;
  limits.tokens = p.kv_score.shape[0];
  p.latent = run.arena().tensor(MEGAMLA_BF16, {limits.tokens, kDims}, kUnwritten);
  p.written = run.arena().tensor(MEGAMLA_U8, {limits.tokens}, kUnwritten);
  take_workspace<api::KvCompress>(run, limits);
  if (p.compress_ratio == 1) {
    call_op(run, p);
  } else {
    run_steps(run, p);
  }
  compare_rows(run, p.latent, p.written);
}

}  // namespace megamla::check
