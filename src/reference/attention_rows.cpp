#include "reference/attention_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/line_vector.hpp"
#include "core/simd.hpp"
#include "core/threads.hpp"
#include "format/rope.hpp"
#include "reference/attention_output.hpp"

namespace megamla::reference {
namespace {

constexpr int64_t kDims = format::kHeadDim;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Heads and keys that are multiplied together, so that a value is loaded once for several products. A row has a
// multiple of 8 heads; its keys are padded with zeros.
constexpr int64_t kTile = 4;
// Keys that all heads meet before the next ones: 128 KB.
constexpr int64_t kKeyBlock = 64;

// One row's intermediate values; made once per thread.
struct Row {
  LineVector<float> keys;       // [stride, 512]
  LineVector<double> q;         // [heads, 512]: the rotated queries
  LineVector<double> scales;    // [heads]: from q.k to a logit
  LineVector<double> weights;   // [heads, stride]: q.k, then softmax weights
  LineVector<double> weighted;  // [heads, 512]
  int64_t stride = 0;           // room for keys, a multiple of kTile
  int64_t count = 0;            // keys

  Row(int64_t heads, int64_t most_keys) : stride((most_keys + kTile - 1) / kTile * kTile) {
    keys.resize(stride * kDims);
    q.resize(heads * kDims);
    scales.resize(heads);
    weights.resize(heads * stride);
    weighted.resize(heads * kDims);
  }
};

MEGAMLA_SIMD_CLONES void decode_key(const KeySource& source, int64_t slot, float* key) {
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

// A sum over dims runs in eight lanes, so that additions need not wait for each other, whatever the machine's vectors.
constexpr int64_t kLanes = 8;
using Lanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;

inline __attribute__((always_inline)) void load_keys(const float* keys, Lanes* lanes) {
#pragma GCC unroll 4
  for (int64_t k = 0; k < kTile; ++k) {
    double values[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) values[i] = keys[k * kDims + i];
    std::memcpy(&lanes[k], values, sizeof(values));
  }
}

// scores[h * stride + k] = q[h] . keys[k] for a tile of heads and keys.
MEGAMLA_SIMD_CLONES void multiply_tile(const double* q, const float* keys, double* scores, int64_t stride) {
  Lanes sum[kTile * kTile] = {};
  for (int64_t d = 0; d < kDims; d += kLanes) {
    Lanes key[kTile];
    load_keys(keys + d, key);
#pragma GCC unroll 4
    for (int64_t h = 0; h < kTile; ++h) {
      Lanes query;
      std::memcpy(&query, q + h * kDims + d, sizeof(query));
#pragma GCC unroll 4
      for (int64_t k = 0; k < kTile; ++k) sum[h * kTile + k] += query * key[k];
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTile * kTile; ++i) {
    const Lanes& s = sum[i];
    scores[i / kTile * stride + i % kTile] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}

// sums[h] += weights[h * stride + k] * keys[k], key by key, for a tile of heads and keys.
MEGAMLA_SIMD_CLONES void weigh_tile(const double* weights, int64_t stride, const float* keys, double* sums) {
  double weight[kTile * kTile];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTile * kTile; ++i) weight[i] = weights[i / kTile * stride + i % kTile];
  for (int64_t d = 0; d < kDims; d += kLanes) {
    Lanes key[kTile];
    load_keys(keys + d, key);
#pragma GCC unroll 4
    for (int64_t h = 0; h < kTile; ++h) {
      Lanes sum;
      std::memcpy(&sum, sums + h * kDims + d, sizeof(sum));
#pragma GCC unroll 4
      for (int64_t k = 0; k < kTile; ++k) sum += weight[h * kTile + k] * key[k];
      std::memcpy(sums + h * kDims + d, &sum, sizeof(sum));
    }
  }
}

// Calls f(first head, first key) for every tile, block of keys after block of keys.
template <class F>
void for_each_tile(int64_t heads, int64_t keys, F&& f) {
  for (int64_t begin = 0; begin < keys; begin += kKeyBlock) {
    for (int64_t h = 0; h < heads; h += kTile) {
      for (int64_t k = begin; k < std::min(begin + kKeyBlock, keys); k += kTile) f(h, k);
    }
  }
}

void write_lse_and_max(const AttentionView& view, int64_t t, int64_t head, double lse, double largest) {
  if (present(view.lse)) at<float>(view.lse, t, head) = static_cast<float>(lse);
  if (present(view.max_logits)) at<float>(view.max_logits, t, head) = static_cast<float>(largest);
}

// A head's scores to softmax weights.
struct Softmax {
  double largest;      // logit
  double shift;        // weights are exp(logit - shift)
  double sum;          // of the weights
  double denominator;  // with the sink; 0: there is nothing to divide
};

Softmax weigh_scores(const AttentionView& view, int64_t head, Row& row) {
  double* weights = &row.weights[head * row.stride];
  Softmax s{-kInfinity, 0, 0, 0};
  for (int64_t k = 0; k < row.count; ++k) {
    weights[k] *= row.scales[head];
    s.largest = weights[k] > s.largest ? weights[k] : s.largest;
  }
  s.shift = std::isfinite(s.largest) ? s.largest : 0;
  for (int64_t k = 0; k < row.count; ++k) {
    weights[k] = std::exp(weights[k] - s.shift);
    s.sum += weights[k];
  }
  std::fill(weights + row.count, weights + row.stride, 0.0);
  const double sink = present(view.attn_sink) ? at<const float>(view.attn_sink, head) : -kInfinity;
  s.denominator = sink == kInfinity ? 0 : s.sum + std::exp(sink - s.shift);
  return s;
}

void write_result(const AttentionView& view, int64_t t, int64_t head, const float* cos_sin, const Softmax& s,
                  double* weighted) {
  if (s.denominator == 0) {
    std::fill_n(weighted, kDims, 0.0);
  } else {
    for (int64_t d = 0; d < kDims; ++d) weighted[d] /= s.denominator;
    if (cos_sin != nullptr) rotate_output_back(cos_sin, weighted);
  }
  write_head(view, t, head, weighted);
  write_lse_and_max(view, t, head, s.shift + std::log(s.sum), s.largest);
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
  int64_t key = 0;
  view.for_each_key(t,
                    [&](const KeySource& source, int64_t slot) { decode_key(source, slot, &row.keys[key++ * kDims]); });
  const int64_t padded = (row.count + kTile - 1) / kTile * kTile;
  std::fill(row.keys.begin() + row.count * kDims, row.keys.begin() + padded * kDims, 0.0F);
  const int64_t heads = view.live_heads;
  for (int64_t head = 0; head < heads; ++head) {
    load_query(view, t, head, rotation.cos_sin, &row.q[head * kDims]);
    row.scales[head] = view.softmax_scale * (view.q_norm ? norm_factor(view, t, head) : 1.0);
  }
  for_each_tile(heads, padded, [&](int64_t h, int64_t k) {
    multiply_tile(&row.q[h * kDims], &row.keys[k * kDims], &row.weights[h * row.stride + k], row.stride);
  });
  std::vector<Softmax> softmax(heads);
  for (int64_t head = 0; head < heads; ++head) softmax[head] = weigh_scores(view, head, row);
  row.weighted.assign(heads * kDims, 0);
  for_each_tile(heads, padded, [&](int64_t h, int64_t k) {
    weigh_tile(&row.weights[h * row.stride + k], row.stride, &row.keys[k * kDims], &row.weighted[h * kDims]);
  });
  for (int64_t head = 0; head < heads; ++head) {
    write_result(view, t, head, rotation.cos_sin, softmax[head], &row.weighted[head * kDims]);
  }
}

}  // namespace

Status attention_rows(const AttentionView& view, const megamla_exec& exec) {
  int64_t most_keys = 0;
  for (int64_t t = 0; t < view.tokens(); ++t) most_keys = std::max(most_keys, view.count_keys(t));
  const int64_t threads = std::min<int64_t>(resolve_threads(exec.num_threads), view.tokens());
  std::vector<Row> rows(static_cast<size_t>(threads), Row(view.live_heads, most_keys));
  parallel_items(view.tokens(), static_cast<int>(threads),
                 [&](int64_t t, int worker) { attend_row(view, t, rows[static_cast<size_t>(worker)]); });
  return {};
}

}  // namespace megamla::reference
