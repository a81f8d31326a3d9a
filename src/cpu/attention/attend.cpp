#include "cpu/attention/attend.hpp"

#include <limits>
#include <mutex>

#include "core/threads.hpp"
#include "cpu/attention/key_split.hpp"
#include "cpu/attention/output.hpp"
#include "cpu/attention/products_avx512.hpp"
#include "cpu/attention/query.hpp"
#include "cpu/attention/segment.hpp"
#include "cpu/gemm.hpp"

namespace megamla::cpu::attention {
namespace {

// Rows per thread from which on whole rows are handed out; below, segments of rows.
constexpr int64_t kRowsPerThread = 2;

struct Item {
  int64_t t;
  int64_t segment;
};

// All of a call's memory, for `threads` threads.
struct Memory {
  Multiplier multiplier;
  int64_t heads;
  int64_t threads;

  int64_t slots() const { return kRowsPerThread * threads; }
  int64_t worker_bytes() const {
    Scratch scratch(nullptr);
    take_row_scratch(scratch, multiplier, heads);
    return scratch.used();
  }
  int64_t partial_bytes() const {
    Scratch scratch(nullptr);
    take_partial(scratch, heads);
    return scratch.used();
  }
  int64_t items_bytes() const {
    Scratch scratch(nullptr);
    scratch.take<Item>(slots());
    return scratch.used();
  }
  // Workers; then, for split rows, a wave of segments, one result per row, and the list of the wave's items.
  int64_t bytes() const { return threads * worker_bytes() + 2 * slots() * partial_bytes() + items_bytes(); }

  RowScratch worker(void* base, int64_t i) const {
    Scratch scratch(static_cast<char*>(base) + i * worker_bytes());
    return take_row_scratch(scratch, multiplier, heads);
  }
  Partial partial(void* base, int64_t i) const {
    Scratch scratch(static_cast<char*>(base) + threads * worker_bytes() + i * partial_bytes());
    return take_partial(scratch, heads);
  }
  Partial segment_partial(void* base, int64_t i) const { return partial(base, i); }
  Partial row_partial(void* base, int64_t i) const { return partial(base, slots() + i); }
  Item* items(void* base) const {
    return reinterpret_cast<Item*>(static_cast<char*>(base) + threads * worker_bytes() + 2 * slots() * partial_bytes());
  }
};

// The first error of any thread.
class SharedStatus {
 public:
  void add(Status status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& get() const { return status_; }

 private:
  std::mutex mutex_;
  Status status_;
};

class Call {
 public:
  Call(Multiplier multiplier, const AttentionView& view, const Memory& memory, void* workspace)
      : multiplier_(multiplier), view_(view), memory_(memory), workspace_(workspace) {}

  // One thread per row, as threads become free.
  Status by_rows() {
    SharedStatus status;
    const auto keys_of = [&](int64_t t) { return view_.listed_keys(t); };
    RowOrder order{view_.tokens(), 0};
    for (int64_t t = 0; t < order.rows; ++t) order.keys += keys_of(t);
    parallel_items(order.steps(), threads(), [&](int64_t i, int worker) {
      const int64_t t = order.row(i, keys_of);
      if (t >= 0) status.add(attend_row(t, worker));
    });
    return status.get();
  }

  // Few rows: one thread per segment of a row, wave after wave. The same segments, merged in the same order, as by
  // rows.
  Status by_segments() {
    SharedStatus status;
    Item next{0, 0};
    for (;;) {
      const int64_t count = fill_wave(&next);
      if (count == 0) break;
      parallel_items(count, threads(), [&](int64_t i, int worker) { status.add(attend_item(i, worker)); });
      MEGAMLA_RETURN_IF_ERROR(status.get());
      parallel_items(view_.tokens(), threads(), [&](int64_t t, int) { merge_items_of(t, count); });
    }
    parallel_items(view_.tokens(), threads(),
                   [&](int64_t t, int) { finish_row(t, memory_.row_partial(workspace_, t)); });
    return {};
  }

 private:
  int threads() const { return static_cast<int>(memory_.threads); }

  // Rows with nothing to compute have no segments.
  int64_t keys_of(int64_t t) const { return view_.rotation(t).outside ? 0 : view_.count_keys(t); }

  Status attend_row(int64_t t, int worker) {
    const RowScratch scratch = memory_.worker(workspace_, worker);
    const int64_t keys = keys_of(t);
    if (keys > 0) load_query(multiplier_, view_, t, view_.rotation(t).cos_sin, scratch.q, scratch.scales);
    KeyCursor cursor(view_, t);
    for (int64_t s = 0; s < num_segments(keys); ++s) {
      const Partial& target = s == 0 ? scratch.row : scratch.segment;
      MEGAMLA_RETURN_IF_ERROR(
          attend_segment(multiplier_, view_, segment(keys, s).size(), &cursor, t + threads(), scratch, target));
      if (s > 0) merge_partial(scratch.segment, view_.live_heads, scratch.row);
    }
    finish_row(t, scratch.row);
    return {};
  }

  int64_t fill_wave(Item* next) {
    Item* items = memory_.items(workspace_);
    int64_t count = 0;
    while (next->t < view_.tokens() && count < memory_.slots()) {
      if (next->segment < num_segments(keys_of(next->t))) {
        items[count++] = *next;
        ++next->segment;
      } else {
        *next = {next->t + 1, 0};
      }
    }
    return count;
  }

  Status attend_item(int64_t i, int worker) {
    const Item item = memory_.items(workspace_)[i];
    const RowScratch scratch = memory_.worker(workspace_, worker);
    load_query(multiplier_, view_, item.t, view_.rotation(item.t).cos_sin, scratch.q, scratch.scales);
    const KeyRange range = segment(keys_of(item.t), item.segment);
    KeyCursor cursor(view_, item.t);
    cursor.skip(range.begin);
    return attend_segment(multiplier_, view_, range.size(), &cursor, -1, scratch,
                          memory_.segment_partial(workspace_, i));
  }

  void merge_items_of(int64_t t, int64_t count) {
    const Item* items = memory_.items(workspace_);
    const Partial row = memory_.row_partial(workspace_, t);
    for (int64_t i = 0; i < count; ++i) {
      if (items[i].t != t) continue;
      const Partial segment = memory_.segment_partial(workspace_, i);
      items[i].segment == 0 ? copy_partial(segment, view_.live_heads, row)
                            : merge_partial(segment, view_.live_heads, row);
    }
  }

  void finish_row(int64_t t, const Partial& row) {
    const AttentionView::Rotation rotation = view_.rotation(t);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    if (view_.count_keys(t) == 0) return write_zero_row(view_, t, kInfinity, -kInfinity);
    if (rotation.outside) return write_zero_row(view_, t, kNan, kNan);
    write_row(view_, t, rotation.cos_sin, row);
  }

  Multiplier multiplier_;
  const AttentionView& view_;
  const Memory& memory_;
  void* workspace_;
};

}  // namespace

Status supports(Multiplier multiplier) {
  if (multiplier == Multiplier::kAvx512Bf16 && !has_avx512_bf16()) {
    return unsupported("this processor lacks AVX512-BF16");
  }
  if (multiplier == Multiplier::kGemmBf16 && native_gemm_type() != GemmType::kBf16) {
    return unsupported("oneDNN does not multiply bf16 natively on this processor");
  }
  return {};
}

int64_t workspace_size(Multiplier multiplier, const megamla_limits& limits) {
  if (limits.tokens == 0 || limits.heads == 0) return 0;
  return Memory{multiplier, limits.heads, resolve_threads(limits.num_threads)}.bytes();
}

Status attend(Multiplier multiplier, const AttentionView& view, const megamla_exec& exec) {
  if (view.tokens() == 0) return {};
  const Memory memory{multiplier, view.heads(), resolve_threads(exec.num_threads)};
  Call call(multiplier, view, memory, exec.workspace);
  return view.tokens() < memory.slots() ? call.by_segments() : call.by_rows();
}

}  // namespace megamla::cpu::attention
