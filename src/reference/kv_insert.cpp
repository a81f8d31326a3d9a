#include "reference/kv_insert.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "format/page.hpp"
#include "plan/insert_rows.hpp"

namespace megamla::reference {

Status kv_insert(const megamla_kv_insert_params& p, const megamla_exec&) {
  const auto writer = static_cast<megamla_kv_writer>(p.writer);
  const plan::InsertRule rule{writer, p.compress_ratio, format::num_slots(p.cache),
                              present(p.cos_sin) ? p.cos_sin.shape[0] : -1};
  int64_t refused = 0;
  for (int64_t t = 0; t < std::min(p.latent.shape[0], p.slot_mapping.shape[0]); ++t) {
    const int64_t position = present(p.positions) ? index_at(p.positions, t) : 0;
    const plan::InsertTarget target = plan::insert_target(rule, at<const int64_t>(p.slot_mapping, t), position);
    refused += target.refused ? 1 : 0;
    if (target.slot < 0) continue;
    const float* cos_sin = present(p.cos_sin) ? &at<const float>(p.cos_sin, target.table_row, 0) : nullptr;
    float x[format::kHeadDim];
    plan::rotated_latent(writer, &at<const format::Bf16>(p.latent, t, 0), cos_sin, x);
    const auto bytes = format::slot_bytes(p.cache, target.slot);
    format::encode_row(static_cast<megamla_kv_format>(p.cache.format), x, bytes.data, bytes.scale);
  }
  if (present(p.skipped_rows)) at<int64_t>(p.skipped_rows, 0) = refused;
  return {};
}

}  // namespace megamla::reference
