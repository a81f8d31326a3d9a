#include "reference/kv_compress.hpp"

#include <algorithm>
#include <cmath>

#include "plan/compress_rows.hpp"
#include "reference/rms_norm.hpp"

namespace megamla::reference {
namespace {

using plan::kPooledWidth;
using plan::kStateWidth;

Status norm(const megamla_kv_compress_params& p, const megamla_tensor& x, const megamla_tensor& y) {
  megamla_rms_norm_params norm_params{};
  norm_params.eps = p.eps;
  norm_params.x = x;
  norm_params.weight = p.weight;
  norm_params.y = y;
  return rms_norm(norm_params, MEGAMLA_EXEC_INIT);
}

// Softmax over the two scores of each dim weights the two kv values; pooled values are fp32.
void pool(const float* first, const float* second, float* pooled) {
  for (int64_t d = 0; d < kPooledWidth; ++d) {
    const double difference = static_cast<double>(second[kPooledWidth + d]) - first[kPooledWidth + d];
    const double smaller = std::exp(-std::abs(difference));  // of the two weights, relative to the larger
    const double larger_weight = 1 / (1 + smaller);
    const double smaller_weight = smaller / (1 + smaller);
    const double second_weight = difference >= 0 ? larger_weight : smaller_weight;
    const double first_weight = difference >= 0 ? smaller_weight : larger_weight;
    pooled[d] = static_cast<float>(first[d] * first_weight + second[d] * second_weight);
  }
}

// Token after token: each is stored in its ring first, so that the newest row is what a later token finds there.
Status compress_pairs(const megamla_kv_compress_params& p) {
  for (int64_t t = 0; t < p.kv_score.shape[0]; ++t) {
    const plan::StateRows rows = plan::state_rows(p, t);
    if (present(p.written)) at<uint8_t>(p.written, t) = rows.partner >= 0 ? 1 : 0;
    if (rows.own < 0) continue;
    const float* token = &at<const float>(p.kv_score, t, 0);
    std::copy_n(token, kStateWidth, plan::state_row(p, rows.own));
    if (rows.partner < 0) continue;
    float pooled[kPooledWidth];
    pool(plan::state_row(p, rows.partner), token, pooled);
    MEGAMLA_RETURN_IF_ERROR(norm(p, host_tensor(pooled, MEGAMLA_F32, {1, kPooledWidth}), slice(p.latent, t, t + 1)));
  }
  return {};
}

}  // namespace

Status kv_compress(const megamla_kv_compress_params& p, const megamla_exec&) {
  if (p.compress_ratio == 2) return compress_pairs(p);
  if (present(p.written)) std::fill_n(data<uint8_t>(p.written), p.written.shape[0], uint8_t{1});
  return norm(p, p.kv_score, p.latent);
}

}  // namespace megamla::reference
