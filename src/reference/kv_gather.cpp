#include "reference/kv_gather.hpp"

#include "core/tensor.hpp"
#include "format/page.hpp"
#include "plan/gather_rows.hpp"
#include "plan/page_table.hpp"

namespace megamla::reference {

Status kv_gather(const megamla_kv_gather_params& p, const megamla_exec&) {
  const int64_t columns = p.block_table.shape[1];
  for (int64_t r = 0; r < p.seq_lens.shape[0]; ++r) {
    const int64_t seq_len = at<const int32_t>(p.seq_lens, r);
    const int64_t gather_len = present(p.gather_lens) ? at<const int32_t>(p.gather_lens, r) : seq_len;
    const plan::GatherRange range = plan::gather_range(seq_len, gather_len, p.out.shape[1], p.offset);
    const int32_t* entries = row_of<const int32_t>(p.block_table, r);
    const plan::PageTable table{entries, columns, p.cache.page_size, p.cache.num_pages};
    for (int64_t i = 0; i < range.rows; ++i) {
      const int64_t slot = plan::slot_of(table, range.first + i);
      if (slot < 0) continue;
      const auto bytes = format::slot_bytes(p.cache, slot);
      float x[format::kHeadDim];
      format::decode_row(static_cast<megamla_kv_format>(p.cache.format), bytes.data, bytes.scale, x);
      auto* out = &at<format::Bf16>(p.out, r, p.offset + i, 0);
      for (int d = 0; d < format::kHeadDim; ++d) out[d] = format::to_bf16(x[d]);
    }
  }
  return {};
}

}  // namespace megamla::reference
