// A row's valid keys, in list order, and where their bytes lie.
#pragma once

#include <cstdint>

#include "core/attention_view.hpp"

namespace megamla::cpu::attention {

// A record's data and scales, or a bf16 row (no scales).
struct KeyRef {
  const KeySource* source;
  const uint8_t* data;
  const uint8_t* scale;
};

// `slot` must be in [0, source.count()).
inline KeyRef key_at(const KeySource& source, int64_t slot) {
  if (present(source.cache)) {
    const auto bytes = format::slot_bytes(source.cache, slot);
    return {&source, bytes.data, bytes.scale};
  }
  return {&source, reinterpret_cast<const uint8_t*>(&at<const format::Bf16>(source.rows, slot)), nullptr};
}

// Takes them a part at a time.
class KeyCursor {
 public:
  KeyCursor(const AttentionView& view, int64_t t) : view_(&view), t_(t) {}

  // The next `count`, or those that are left; returns how many.
  int64_t take(int64_t count, KeyRef* out) {
    return next(count, [&](const KeySource& source, int64_t slot) { *out++ = key_at(source, slot); });
  }
  void skip(int64_t count) {
    next(count, [](const KeySource&, int64_t) {});
  }

 private:
  template <class F>
  int64_t next(int64_t count, F&& f) {
    int64_t taken = 0;
    for (; source_ < view_->num_sources; ++source_, entry_ = 0) {
      const KeySource& source = view_->sources[source_];
      const int64_t slots = source.count();
      const int64_t length = source.length(t_);
      for (; entry_ < length; ++entry_) {
        if (taken == count) return taken;
        const int64_t slot = at<const int32_t>(source.indices, t_, entry_);
        if (slot < 0 || slot >= slots) continue;
        f(source, slot);
        ++taken;
      }
    }
    return taken;
  }

  const AttentionView* view_;
  int64_t t_;
  int source_ = 0;
  int64_t entry_ = 0;
};

}  // namespace megamla::cpu::attention
