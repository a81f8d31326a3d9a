#include "cpu/kv_gather.hpp"

#include <algorithm>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "cpu/fetch.hpp"
#include "cpu/record_codec.hpp"
#include "format/page.hpp"
#include "plan/gather_rows.hpp"
#include "plan/page_table.hpp"

namespace megamla::cpu {
namespace {

constexpr int64_t kRowsPerItem = 64;  // 64 KiB of output: enough to pay for handing out an item

constexpr int64_t kRowsAhead = 4;  // records that are fetched before they are decoded

template <class Record>
void fetch_record(const megamla_kv_cache& cache, int64_t slot) {
  if (slot < 0) return;
  const auto bytes = format::slot_bytes(cache, slot);
  fetch(bytes.data, Record::kDataBytes);
  fetch(bytes.scale, Record::kScaleBytes);
}

template <class Record>
void gather_rows(const megamla_kv_gather_params& p, int64_t request, int64_t begin) {
  const int64_t seq_len = at<const int32_t>(p.seq_lens, request);
  const int64_t gather_len = present(p.gather_lens) ? at<const int32_t>(p.gather_lens, request) : seq_len;
  const plan::GatherRange range = plan::gather_range(seq_len, gather_len, p.out.shape[1], p.offset);
  const int64_t columns = p.block_table.shape[1];
  const int32_t* entries = row_of<const int32_t>(p.block_table, request);
  const plan::PageTable table{entries, columns, p.cache.page_size, p.cache.num_pages};
  const int64_t end = std::min(begin + kRowsPerItem, range.rows);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kRowsAhead < end) fetch_record<Record>(p.cache, plan::slot_of(table, range.first + i + kRowsAhead));
    const int64_t slot = plan::slot_of(table, range.first + i);
    if (slot < 0) continue;
    const auto bytes = format::slot_bytes(p.cache, slot);
    decode_record(Record{}, bytes.data, bytes.scale, &at<format::Bf16>(p.out, request, p.offset + i, 0));
  }
}

}  // namespace

Status kv_gather(const megamla_kv_gather_params& p, const megamla_exec& exec) {
  const int64_t room = std::max<int64_t>(p.out.shape[1] - p.offset, 0);
  const int64_t items_per_request = (room + kRowsPerItem - 1) / kRowsPerItem;
  const int threads = resolve_threads(exec.num_threads);
  format::with_record(static_cast<megamla_kv_format>(p.cache.format), [&](auto record) {
    parallel_items(p.seq_lens.shape[0] * items_per_request, threads, [&](int64_t item, int) {
      gather_rows<decltype(record)>(p, item / items_per_request, item % items_per_request * kRowsPerItem);
    });
  });
  return {};
}

}  // namespace megamla::cpu
