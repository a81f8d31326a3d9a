#include "cpu/attention/query.hpp"

#include <cmath>
#include <cstring>
#include <numbers>

#include "cpu/rotate.hpp"
#include "cpu/widen.hpp"

namespace megamla::cpu::attention {
namespace {

constexpr int64_t kDims = format::kHeadDim;

// Heads that are copied together: of a chunk they lie side by side, while each head's next chunk lies far off.
constexpr int64_t kHeadsAtOnce = 8;

void copy_heads(const AttentionView& view, int64_t t, int64_t first, format::Bf16* q) {
  const format::Bf16* row = view.q_row(t);
  if (view.q_layout == MEGAMLA_Q_STANDARD) {
    for (int64_t h = 0; h < kHeadsAtOnce; ++h) {
      std::memcpy(q + h * kDims, row + view.q_index(first + h, 0), kDims * sizeof(*q));
    }
    return;
  }
  for (int64_t d = 0; d < kDims; d += format::kQChunkDims) {
    const format::Bf16* chunk = row + view.q_index(first, d);
    for (int64_t h = 0; h < kHeadsAtOnce; ++h) {
      std::memcpy(q + h * kDims + d, chunk + h * format::kQChunkDims, format::kQChunkDims * sizeof(*q));
    }
  }
}

float norm_factor(const format::Bf16* q, float eps) {
  float lane[16] = {};
  for (int64_t d = 0; d < kDims; d += 16) {
    for (int64_t l = 0; l < 16; ++l) {
      const float x = format::to_float(q[d + l]);
      lane[l] += x * x;
    }
  }
  double squares = 0;
  for (const float sum : lane) squares += sum;
  return static_cast<float>(1 / std::sqrt(squares / static_cast<double>(kDims) + static_cast<double>(eps)));
}

}  // namespace

void load_query(Multiplier multiplier, const AttentionView& view, int64_t t, const float* cos_sin, void* q,
                float* scales) {
  for (int64_t head = 0; head < view.live_heads; ++head) {
    format::Bf16 values[kHeadsAtOnce * kDims];
    const bool wide = multiplier == Multiplier::kGemmF32;
    format::Bf16* target = wide ? values + head % kHeadsAtOnce * kDims : static_cast<format::Bf16*>(q) + head * kDims;
    if (head % kHeadsAtOnce == 0) copy_heads(view, t, head, target);
    scales[head] = view.softmax_scale * std::numbers::log2e_v<float>;
    if (view.q_norm) scales[head] *= norm_factor(target, view.q_norm_eps);
    if (cos_sin != nullptr) rotate_rope(cos_sin, target + format::kNopeDim);
    if (wide) widen_bf16(target, kDims, static_cast<float*>(q) + head * kDims);
  }
}

}  // namespace megamla::cpu::attention
