#include "cpu/block_scaled_linear.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "cpu/gemm.hpp"
#include "cpu/linear/row_dots_avx512.hpp"
#include "cpu/scratch.hpp"
#include "cpu/widen.hpp"
#include "cpu/widen_avx512.hpp"
#include "format/chunked.hpp"
#include "format/output_cast.hpp"
#include "format/small_float.hpp"
#include "plan/linear_shape.hpp"

namespace megamla::cpu {
namespace {

using Params = megamla_block_scaled_linear_params;

constexpr int64_t kPanelRows =
    64;  // weight rows that a thread widens at a time: 0.5 MB of bf16 at 4096 columns, within an L2
// Tokens whose inputs are widened at a time, 1024 of bf16 or 512 of fp32: bounds the workspace, costs 3% of re-widened
// weights.
constexpr int64_t token_block(int64_t element) { return 2048 / element; }
constexpr int64_t kTokenTile =
    256;  // tokens of one GEMM: its fp32 results (64 KB) stay in cache until they are written out
// Tokens of a GEMM are rounded up to this, with rows of zeros: oneDNN compiles some 200 KB for every number that it
// meets.
constexpr int64_t kTokenGranule = 16;
constexpr int64_t kScaleGroup = 32;
// Up to here row_dots_avx512 is faster than widening a panel and multiplying it through oneDNN.
constexpr int64_t kMaxDotTokens = 16;

enum class Method { kGemmBf16, kGemmF32, kDots };
GemmType type_of(Method method) { return method == Method::kGemmF32 ? GemmType::kF32 : GemmType::kBf16; }

struct Buffers {
  void* x;          // [token block, in] of the GEMM's type
  void* panel;      // per worker [kPanelRows, in]
  float* scales;    // per worker [in / 32]: of one row
  uint32_t* steps;  // per worker [kPanelRows, in / 32]: of row_dots_avx512
  float* results;   // per worker [kTokenTile, kPanelRows]
};

Buffers carve(Scratch& scratch, const plan::LinearShape& s, int64_t element, int64_t threads) {
  Buffers b{};
  b.x = scratch.take<char>(format::round_up(std::min(s.tokens, token_block(element)), kTokenGranule) * s.in * element);
  b.panel = scratch.take<char>(threads * kPanelRows * s.in * element);
  b.scales = scratch.take<float>(threads * (s.in / kScaleGroup));
  b.steps = scratch.take<uint32_t>(threads * kPanelRows * (s.in / kScaleGroup));
  b.results = scratch.take<float>(threads * kTokenTile * kPanelRows);
  return b;
}

// One call: what is fixed while panels and token blocks go by.
class Linear {
 public:
  Linear(const Params& p, const megamla_exec& exec, Method method)
      : p_(p),
        s_(plan::linear_shape(p)),
        method_(method),
        type_(type_of(method)),
        token_tile_(p.batch_invariant != 0 ? kTokenGranule : kTokenTile),
        threads_(resolve_threads(exec.num_threads)) {
    Scratch scratch(exec.workspace);
    buffers_ = carve(scratch, s_, gemm_element_size(type_), threads_);
  }

  Status run() {
    if (p_.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      std::fill_n(data<uint8_t>(p_.y_scale), p_.y_scale.shape[0], uint8_t{0});
    }
    const int64_t tokens = token_block(gemm_element_size(type_));
    for (int64_t g = 0; g < s_.groups; ++g) {
      for (int64_t t = 0; t < s_.tokens; t += tokens) {
        MEGAMLA_RETURN_IF_ERROR(block(g, t, std::min(tokens, s_.tokens - t)));
      }
    }
    return {};
  }

 private:
  // oneDNN takes no rows that overlap, such as one row repeated by a stride of 0. Batch-invariant rows are always
  // copied: a product's row stride is part of its shape.
  bool input_in_place() const {
    return p_.batch_invariant == 0 && p_.input == MEGAMLA_LINEAR_IN_BF16 && type_ == GemmType::kBf16 &&
           (p_.x.stride[0] >= s_.in || s_.tokens == 1);
  }

  // Rows of a block's tokens, and of those of its last tile, which has rows of zeros behind them.
  struct Inputs {
    const void* x;
    int64_t ldx;
    const void* last;
    int64_t ld_last;
  };

  Inputs prepare_inputs(int64_t g, int64_t first, int64_t tokens) {
    const int64_t element = gemm_element_size(type_);
    const int64_t last = (tokens - 1) / token_tile_ * token_tile_;
    char* buffer = static_cast<char*>(buffers_.x);
    const auto widen_tokens = [&](int64_t begin_token, int64_t count) {
      parallel_ranges(count, threads_, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t t = begin; t < end; ++t) widen_token(g, first + begin_token + t, t, worker);
      });
      const int64_t padding = method_ == Method::kDots ? 0 : format::round_up(count, kTokenGranule) - count;
      std::memset(buffer + count * s_.in * element, 0, static_cast<size_t>(padding * s_.in * element));
    };
    if (!input_in_place()) {
      widen_tokens(0, tokens);
      return {buffer, s_.in, buffer + last * s_.in * element, s_.in};
    }
    const auto* x = data<const format::Bf16>(p_.x) + first * p_.x.stride[0] + g * plan::group_stride(p_.x);
    const int64_t ldx = tokens == 1 ? s_.in : p_.x.stride[0];  // a stride that is never taken may be anything
    if (method_ == Method::kDots || tokens % kTokenGranule == 0) return {x, ldx, x + last * ldx, ldx};
    widen_tokens(last, tokens - last);
    return {x, ldx, buffer, s_.in};
  }

  Status block(int64_t g, int64_t first, int64_t tokens) {
    const Inputs inputs = prepare_inputs(g, first, tokens);
    const int64_t panels = (s_.out + kPanelRows - 1) / kPanelRows;
    std::atomic<bool> failed{false};
    Status failure;
    const auto run = [&](int64_t i, int worker) {
      const int64_t n = i * kPanelRows;
      const Status status = panel(g, first, tokens, n, std::min(kPanelRows, s_.out - n), inputs, worker);
      if (!status.ok() && !failed.exchange(true)) failure = status;
    };
    if (method_ == Method::kDots) {
      // Codes are fetched ahead, past the end of a panel: the next one should be this worker's too.
      parallel_ranges(panels, threads_, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) run(i, worker);
      });
    } else {
      parallel_items(panels, threads_, run);
    }
    return failure;
  }

  void widen_token(int64_t g, int64_t token, int64_t row, int worker) {
    const int64_t offset = token * p_.x.stride[0] + g * plan::group_stride(p_.x);
    if (p_.input == MEGAMLA_LINEAR_IN_BF16) {
      const format::Bf16* values = data<const format::Bf16>(p_.x) + offset;
      if (type_ == GemmType::kBf16) {
        std::copy_n(values, s_.in, static_cast<format::Bf16*>(buffers_.x) + row * s_.in);
      } else {
        widen_bf16(values, s_.in, static_cast<float*>(buffers_.x) + row * s_.in);
      }
      return;
    }
    float* scales = worker_scales(worker);
    for (int64_t k = 0; k < s_.in / kScaleGroup; ++k) {
      uint8_t byte = 0;
      if (p_.input == MEGAMLA_LINEAR_IN_MXFP8) {
        byte = data<const uint8_t>(p_.x_scale)[format::f8_128x4_index(s_.in / kScaleGroup, token, k)];
      } else {
        const format::PackedScale where = format::packed_scale(k);
        byte = static_cast<uint8_t>(static_cast<uint32_t>(at<const int32_t>(p_.x_scale, token, g, where.word)) >>
                                    where.shift);
      }
      scales[k] = format::ue8m0_to_float(byte);
    }
    widen(data<const uint8_t>(p_.x) + offset, scales, buffers_.x, row);
  }

  void widen(const uint8_t* codes, const float* scales, void* to, int64_t row) const {
    if (type_ == GemmType::kBf16) {
      widen_e4m3(codes, scales, s_.in, static_cast<format::Bf16*>(to) + row * s_.in);
    } else {
      widen_e4m3(codes, scales, s_.in, static_cast<float*>(to) + row * s_.in);
    }
  }

  // The panel's rows in the GEMM's type: in place for bf16 weights, else widened.
  const void* weight_panel(int64_t g, int64_t n, int64_t rows, int worker) {
    const int64_t first = g * s_.out + n;
    char* panel = static_cast<char*>(buffers_.panel) + worker * kPanelRows * s_.in * gemm_element_size(type_);
    if (p_.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) {
      const format::Bf16* weights = data<const format::Bf16>(p_.weight) + first * s_.in;
      if (type_ == GemmType::kBf16) return weights;
      widen_bf16(weights, rows * s_.in, reinterpret_cast<float*>(panel));
      return panel;
    }
    float* scales = worker_scales(worker);
    for (int64_t r = 0; r < rows; ++r) {
      if (own_scales() || r == 0 || (first + r) % kScaleGroup == 0) load_scales(first + r, scales);
      widen(data<const uint8_t>(p_.weight) + (first + r) * s_.in, scales, panel, r);
    }
    return panel;
  }

  float* worker_scales(int worker) const { return buffers_.scales + worker * (s_.in / kScaleGroup); }
  bool own_scales() const { return p_.weight_kind == MEGAMLA_LINEAR_WEIGHT_ROW_32; }

  // Of one weight row; rows with scales of their own have them one after the other.
  const uint8_t* scale_bytes(int64_t row) const {
    return data<const uint8_t>(p_.weight_scale) + (own_scales() ? row : row / kScaleGroup) * (s_.in / kScaleGroup);
  }
  void load_scales(int64_t row, float* scales) const {
    const uint8_t* bytes = scale_bytes(row);
    for (int64_t k = 0; k < s_.in / kScaleGroup; ++k) scales[k] = format::ue8m0_to_float(bytes[k]);
  }

  // The panel's results for all tokens, straight from the FP8 codes; false where a scale does not allow it.
  bool dots(int64_t first, int64_t rows, int64_t tokens, const void* x, int64_t ldx, int worker, float* results) const {
    const int64_t groups = s_.in / kScaleGroup;
    uint32_t* steps = buffers_.steps + worker * kPanelRows * groups;
    // Rows that share their scales go together.
    const int64_t together = own_scales() ? rows : kScaleGroup;
    for (int64_t r = 0; r < rows; r += together) {
      const int64_t count = std::min(together, rows - r);
      if (!linear::scale_steps(scale_bytes(first + r), (own_scales() ? count : 1) * groups, steps)) return false;
      linear::row_dots_avx512({.codes = data<const uint8_t>(p_.weight) + (first + r) * s_.in,
                               .steps = steps,
                               .step_stride = own_scales() ? groups : 0,
                               .rows = count,
                               .in = s_.in,
                               .x = static_cast<const format::Bf16*>(x),
                               .ldx = ldx,
                               .tokens = tokens,
                               .y = results + r,
                               .ldy = rows});
    }
    return true;
  }

  Status panel(int64_t g, int64_t first, int64_t tokens, int64_t n, int64_t rows, const Inputs& inputs, int worker) {
    float* results = buffers_.results + worker * kTokenTile * kPanelRows;
    if (method_ == Method::kDots && dots(g * s_.out + n, rows, tokens, inputs.x, inputs.ldx, worker, results)) {
      for (int64_t i = 0; i < tokens; ++i) write_results(g, first + i, n, rows, results + i * rows);
      return {};
    }
    const void* weights = weight_panel(g, n, rows, worker);
    Gemm gemm{.type = type_, .n = rows, .k = s_.in, .ldb = s_.in, .ldc = rows};
    for (int64_t t = 0; t < tokens; t += token_tile_) {
      const int64_t count = std::min(token_tile_, tokens - t);
      const bool last = t + count == tokens;
      // There are no rows of zeros behind the inputs of the dots.
      gemm.m = method_ == Method::kDots ? count : format::round_up(count, kTokenGranule);
      gemm.lda = last ? inputs.ld_last : inputs.ldx;
      const void* x =
          last ? inputs.last : static_cast<const char*>(inputs.x) + t * inputs.ldx * gemm_element_size(type_);
      MEGAMLA_RETURN_IF_ERROR(run_gemm(gemm, x, weights, results));
      for (int64_t i = 0; i < count; ++i) write_results(g, first + t + i, n, rows, results + i * rows);
    }
    return {};
  }

  void write_results(int64_t g, int64_t token, int64_t n, int64_t rows, const float* results) {
    if (p_.output == MEGAMLA_LINEAR_OUT_MXFP8) {
      for (int64_t i = 0; i < rows; i += format::kCastGroup) {
        float group[format::kCastGroup];
        for (int64_t j = 0; j < format::kCastGroup; ++j) group[j] = format::round_to_bf16(results[i + j]);
        const int64_t column = g * s_.out + n + i;
        data<uint8_t>(
            p_.y_scale)[format::f8_128x4_index(s_.groups * s_.out / kScaleGroup, token, column / kScaleGroup)] =
            format::cast_mxfp8_group(group, data<uint8_t>(p_.y) + token * s_.groups * s_.out + column);
      }
      return;
    }
    const int64_t offset = token * p_.y.stride[0] + g * plan::group_stride(p_.y) + n;
    if (p_.output == MEGAMLA_LINEAR_OUT_F32) {
      std::copy_n(results, rows, data<float>(p_.y) + offset);
    } else {
      narrow_to_bf16(results, rows, data<format::Bf16>(p_.y) + offset);
    }
  }

  const Params& p_;
  plan::LinearShape s_;
  Method method_;
  GemmType type_;
  // One product's tokens. Batch-invariant rows all go through products of the same shape: with AMX, oneDNN adds up in
  // an order that depends on the number of rows.
  int64_t token_tile_;
  int threads_;
  Buffers buffers_{};
};

int64_t workspace_size(const megamla_limits& limits, GemmType type) {
  Scratch scratch(nullptr);
  carve(scratch, {limits.tokens, limits.groups, limits.in_features, limits.out_features}, gemm_element_size(type),
        resolve_threads(limits.num_threads));
  return scratch.used();
}

}  // namespace

Status block_scaled_linear_dots_supports(const Params& p) {
  if (!has_avx512_vbmi()) return unsupported("this CPU has no AVX512-VBMI and AVX512-BF16");
  if (p.weight_kind == MEGAMLA_LINEAR_WEIGHT_BF16) return unsupported("the weight is BF16, not FP8");
  if (p.batch_invariant != 0) return unsupported("batch-invariant rows come from one method for any number of tokens");
  const int64_t tokens = plan::linear_shape(p).tokens;
  if (tokens > kMaxDotTokens) return unsupported("{} tokens, more than {}", tokens, kMaxDotTokens);
  return {};
}

Status block_scaled_linear_bf16_supports(const Params&) {
  if (native_gemm_type() == GemmType::kBf16) return {};
  return unsupported("this CPU multiplies no bf16 (AVX512-BF16 or AMX)");
}

int64_t block_scaled_linear_bf16_workspace(const megamla_limits& limits) {
  return workspace_size(limits, GemmType::kBf16);
}
int64_t block_scaled_linear_f32_workspace(const megamla_limits& limits) {
  return workspace_size(limits, GemmType::kF32);
}

Status block_scaled_linear_dots(const Params& p, const megamla_exec& exec) {
  return Linear(p, exec, Method::kDots).run();
}
Status block_scaled_linear_bf16(const Params& p, const megamla_exec& exec) {
  return Linear(p, exec, Method::kGemmBf16).run();
}
Status block_scaled_linear_f32(const Params& p, const megamla_exec& exec) {
  return Linear(p, exec, Method::kGemmF32).run();
}

}  // namespace megamla::cpu
