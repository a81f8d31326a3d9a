#include "cpu/kv_insert.hpp"

#include <algorithm>
#include <atomic>

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "cpu/fetch.hpp"
#include "cpu/record_codec.hpp"
#include "format/page.hpp"
#include "plan/insert_rows.hpp"

namespace megamla::cpu {
namespace {

constexpr int64_t kRowsAhead = 4;  // rows whose memory is fetched before they are written

// Workers share the slots, not the rows: a slot's bytes have one writer, so a slot that is named twice holds its last
// row whatever the number of threads. Blocks of slots keep planar scale rows of one cache line on one worker, and give
// a worker rows that follow each other in memory.
class Ownership {
 public:
  Ownership(int64_t worker, int64_t workers) : worker_(worker), workers_(workers) {}

  // Slots mostly follow each other: the answer for a block is kept.
  bool holds(int64_t slot) {
    constexpr int64_t kSlotsPerBlock = 64;
    const int64_t block = slot / kSlotsPerBlock;
    if (block != block_) {
      block_ = block;
      const uint64_t mixed = static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15U;
      holds_ = static_cast<int64_t>(((mixed >> 32) * static_cast<uint64_t>(workers_)) >> 32) == worker_;
    }
    return holds_;
  }

 private:
  int64_t worker_;
  int64_t workers_;
  int64_t block_ = -1;
  bool holds_ = false;
};

template <class Record>
class Inserter {
 public:
  explicit Inserter(const megamla_kv_insert_params& params)
      : p_(params),
        writer_(static_cast<megamla_kv_writer>(params.writer)),
        rule_{writer_, params.compress_ratio, format::num_slots(params.cache),
              present(params.cos_sin) ? params.cos_sin.shape[0] : -1},
        rows_(std::min(params.latent.shape[0], params.slot_mapping.shape[0])) {}

  int64_t rows() const { return rows_; }

  // Writes the rows of one worker's slots; returns how many rows were refused (worker 0 counts for all).
  int64_t insert(int64_t worker, int64_t workers) const {
    int64_t refused = 0;
    Ownership mine(worker, workers);
    Ownership mine_ahead = mine;
    for (int64_t t = 0; t < rows_; ++t) {
      if (t + kRowsAhead < rows_) fetch_row(t + kRowsAhead, mine_ahead);
      const int64_t slot = at<const int64_t>(p_.slot_mapping, t);
      if (slot < 0) continue;
      if (slot < rule_.num_slots && !mine.holds(slot)) continue;
      const int64_t position = present(p_.positions) ? index_at(p_.positions, t) : 0;
      const plan::InsertTarget target = plan::insert_target(rule_, slot, position);
      if (target.slot >= 0) write_row(t, target);
      // A slot beyond the pool has no owner.
      if (target.refused && (slot < rule_.num_slots || worker == 0)) ++refused;
    }
    return refused;
  }

 private:
  // Both ends of a row that this worker will write.
  void fetch_row(int64_t t, Ownership& mine) const {
    const int64_t slot = at<const int64_t>(p_.slot_mapping, t);
    if (slot < 0 || slot >= rule_.num_slots || !mine.holds(slot)) return;
    const auto bytes = format::slot_bytes(p_.cache, slot);
    fetch(&at<const format::Bf16>(p_.latent, t, 0), format::kHeadDim * static_cast<int64_t>(sizeof(format::Bf16)));
    fetch(bytes.data, Record::kDataBytes);
    fetch(bytes.scale, Record::kScaleBytes);
  }

  void write_row(int64_t t, const plan::InsertTarget& target) const {
    const float* cos_sin = present(p_.cos_sin) ? &at<const float>(p_.cos_sin, target.table_row, 0) : nullptr;
    const auto bytes = format::slot_bytes(p_.cache, target.slot);
    insert_record(Record{}, writer_, &at<const format::Bf16>(p_.latent, t, 0), cos_sin, bytes.data, bytes.scale);
  }

  const megamla_kv_insert_params& p_;
  megamla_kv_writer writer_;
  plan::InsertRule rule_;
  int64_t rows_;
};

template <class Record>
int64_t insert_all(const megamla_kv_insert_params& p, int threads) {
  const Inserter<Record> inserter(p);
  const int64_t workers = std::clamp<int64_t>(inserter.rows() / 4, 1, threads);
  std::atomic<int64_t> refused{0};
  parallel_items(workers, static_cast<int>(workers),
                 [&](int64_t worker, int) { refused += inserter.insert(worker, workers); });
  return refused;
}

}  // namespace

Status kv_insert(const megamla_kv_insert_params& p, const megamla_exec& exec) {
  const int threads = resolve_threads(exec.num_threads);
  const int64_t refused = format::with_record(static_cast<megamla_kv_format>(p.cache.format),
                                              [&](auto record) { return insert_all<decltype(record)>(p, threads); });
  if (present(p.skipped_rows)) at<int64_t>(p.skipped_rows, 0) = refused;
  return {};
}

}  // namespace megamla::cpu
