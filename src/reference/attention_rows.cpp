#include "reference/attention_rows.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "core/simd.hpp"
#include "core/threads.hpp"
#include "format/rope.hpp"
#include "reference/attention_output.hpp"

namespace megamla::reference {
namespace {

constexpr int64_t kDims = format::kHeadDim;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One row's intermediate values; made once per thread.
struct Row {
  std::vector<float> keys;       // [count, 512]
  std::vector<double> q;         // [512]: one head's rotated query
  std::vector<double> logits;    // [count]
  std::vector<double> weighted;  // [512]
  int64_t count = 0;

  explicit Row(int64_t most_keys) : keys(most_keys * kDims), q(kDims), logits(most_keys), weighted(kDims) {}
};

void decode_key(const KeySource& source, int64_t slot, float* key) {
  if (present(source.cache)) {
    const auto bytes = format::slot_bytes(source.cache, slot);
    format::decode_row(static_cast<megamla_kv_format>(source.cache.format), bytes.data, bytes.scale, key);
    for (int64_t d = 0; d < kDims; ++d) key[d] = format::round_to_bf16(key[d]);
  } else {
    for (int64_t d = 0; d < kDims; ++d) key[d] = format::to_float(at<const format::Bf16>(source.rows, slot, d));
  }
}

// The factor of q's RMSNorm, from the values before rotation.
double norm_factor(const AttentionView& view, int64_t t, int64_t head) {
  double squares = 0;
  for (int64_t d = 0; d < kDims; ++d) {
    const double x = format::to_float(view.q_row(t)[view.q_index(head, d)]);
    squares += x * x;
  }
  return 1 / std::sqrt(squares / static_cast<double>(kDims) + view.q_norm_eps);
}

// The query as it meets the keys: rotated in fp32, rounded once to bf16.
void load_query(const AttentionView& view, int64_t t, int64_t head, const float* cos_sin, double* q) {
  const auto value = [&](int64_t d) { return format::to_float(view.q_row(t)[view.q_index(head, d)]); };
  for (int64_t d = 0; d < kDims; ++d) q[d] = value(d);
  if (cos_sin == nullptr) return;
  for (int64_t j = 0; j < format::kRopeDim / 2; ++j) {
    const int64_t d = format::kNopeDim + 2 * j;
    const format::Pair y = format::rotate({value(d), value(d + 1)}, cos_sin[j], cos_sin[format::kRopeDim / 2 + j]);
    q[d] = format::round_to_bf16(y.x0);
    q[d + 1] = format::round_to_bf16(y.x1);
  }
}

void rotate_output_back(const float* cos_sin, double* o) {
  for (int64_t j = 0; j < format::kRopeDim / 2; ++j) {
    const double c = cos_sin[j];
    const double s = cos_sin[format::kRopeDim / 2 + j];
    double* pair = o + format::kNopeDim + 2 * j;
    const double x0 = pair[0];
    const double x1 = pair[1];
    pair[0] = x0 * c + x1 * s;
    pair[1] = x1 * c - x0 * s;
  }
}

MEGAMLA_SIMD_CLONES double dot(const double* q, const float* key) {
  double partial[8] = {};  // independent sums, so that additions need not wait for each other
  for (int64_t d = 0; d < kDims; d += 8) {
    for (int64_t i = 0; i < 8; ++i) partial[i] += q[d + i] * key[d + i];
  }
  return ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
         ((partial[4] + partial[5]) + (partial[6] + partial[7]));
}

MEGAMLA_SIMD_CLONES void add_weighted(double weight, const float* key, double* sum) {
  for (int64_t d = 0; d < kDims; ++d) sum[d] += weight * key[d];
}

void write_lse_and_max(const AttentionView& view, int64_t t, int64_t head, double lse, double largest) {
  if (present(view.lse)) at<float>(view.lse, t, head) = static_cast<float>(lse);
  if (present(view.max_logits)) at<float>(view.max_logits, t, head) = static_cast<float>(largest);
}

void attend_head(const AttentionView& view, int64_t t, int64_t head, const float* cos_sin, Row& row) {
  load_query(view, t, head, cos_sin, row.q.data());
  const double scale = view.softmax_scale * (view.q_norm ? norm_factor(view, t, head) : 1.0);
  double largest = -kInfinity;
  for (int64_t k = 0; k < row.count; ++k) {
    row.logits[k] = scale * dot(row.q.data(), &row.keys[k * kDims]);
    largest = row.logits[k] > largest ? row.logits[k] : largest;
  }
  const double shift = std::isfinite(largest) ? largest : 0;
  double sum = 0;
  row.weighted.assign(kDims, 0);
  for (int64_t k = 0; k < row.count; ++k) {
    const double weight = std::exp(row.logits[k] - shift);
    sum += weight;
    add_weighted(weight, &row.keys[k * kDims], row.weighted.data());
  }
  const double sink = present(view.attn_sink) ? at<const float>(view.attn_sink, head) : -kInfinity;
  const double denominator = sum + std::exp(sink - shift);
  if (sink == kInfinity || denominator == 0) {
    row.weighted.assign(kDims, 0);
  } else {
    for (double& x : row.weighted) x /= denominator;
    if (cos_sin != nullptr) rotate_output_back(cos_sin, row.weighted.data());
  }
  write_head(view, t, head, row.weighted.data());
  write_lse_and_max(view, t, head, shift + std::log(sum), largest);
}

void write_zero_row(const AttentionView& view, int64_t t, double lse, double largest) {
  const std::vector<double> zero(kDims, 0);
  for (int64_t head = 0; head < view.live_heads; ++head) {
    write_head(view, t, head, zero.data());
    write_lse_and_max(view, t, head, lse, largest);
  }
}

void attend_row(const AttentionView& view, int64_t t, Row& row) {
  row.count = view.count_keys(t);
  const AttentionView::Rotation rotation = view.rotation(t);
  if (row.count == 0) return write_zero_row(view, t, kInfinity, -kInfinity);
  if (rotation.outside) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return write_zero_row(view, t, nan, nan);
  }
  int64_t k = 0;
  view.for_each_key(t,
                    [&](const KeySource& source, int64_t slot) { decode_key(source, slot, &row.keys[k++ * kDims]); });
  for (int64_t head = 0; head < view.live_heads; ++head) attend_head(view, t, head, rotation.cos_sin, row);
}

}  // namespace

Status attention_rows(const AttentionView& view, const megamla_exec& exec) {
  int64_t most_keys = 0;
  for (int64_t t = 0; t < view.tokens(); ++t) most_keys = std::max(most_keys, view.count_keys(t));
  const int64_t threads = std::min<int64_t>(resolve_threads(exec.num_threads), view.tokens());
  std::vector<Row> rows(static_cast<size_t>(threads), Row(most_keys));
  parallel_items(view.tokens(), static_cast<int>(threads),
                 [&](int64_t t, int worker) { attend_row(view, t, rows[static_cast<size_t>(worker)]); });
  return {};
}

}  // namespace megamla::reference
