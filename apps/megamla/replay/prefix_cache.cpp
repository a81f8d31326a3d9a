#include "replay/prefix_cache.hpp"

#include <algorithm>

namespace megamla::replay {
namespace {

constexpr int64_t kWindowPages = 128 / kWindowPageTokens;
constexpr int64_t kWindowPagesPerBlock = io::kTraceBlockTokens / kWindowPageTokens;
constexpr int64_t kCompressedPagesPerBlock = io::kTraceBlockTokens / kCompressedPageTokens;

}  // namespace

int64_t PrefixCache::reuse(Request& request, int64_t max_blocks) {
  int64_t blocks = 0;
  const int64_t limit = std::min(max_blocks, static_cast<int64_t>(request.block_keys.size()));
  while (blocks < limit && by_key_.contains(request.block_keys[static_cast<size_t>(blocks)])) ++blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto entry = by_key_.at(request.block_keys[static_cast<size_t>(b)]);
    entries_.splice(entries_.begin(), entries_, entry);
    for (int64_t i = 0; i < kCompressedPagesPerBlock; ++i) {
      const int32_t page = entry->compressed[static_cast<size_t>(i)];
      compressed_.share(page);
      request.compressed_table[static_cast<size_t>(b * kCompressedPagesPerBlock + i)] = page;
    }
    if (b + 1 < blocks) continue;
    for (int64_t i = 0; i < kWindowPages; ++i) {
      const int32_t page = entry->window[static_cast<size_t>(i)];
      window_.share(page);
      request.window_table[static_cast<size_t>((b + 1) * kWindowPagesPerBlock - kWindowPages + i)] = page;
    }
  }
  return blocks;
}

void PrefixCache::insert(const Request& request, int64_t block) {
  const uint64_t key = request.block_keys[static_cast<size_t>(block)];
  if (by_key_.contains(key)) return;
  Entry entry{key, {}, {}};
  for (int64_t i = 0; i < kWindowPages; ++i) {
    entry.window.push_back(
        request.window_table[static_cast<size_t>((block + 1) * kWindowPagesPerBlock - kWindowPages + i)]);
    window_.share(entry.window.back());
  }
  for (int64_t i = 0; i < kCompressedPagesPerBlock; ++i) {
    entry.compressed.push_back(request.compressed_table[static_cast<size_t>(block * kCompressedPagesPerBlock + i)]);
    compressed_.share(entry.compressed.back());
  }
  entries_.push_front(std::move(entry));
  by_key_[key] = entries_.begin();
}

void PrefixCache::drop(std::list<Entry>::iterator entry) {
  for (const int32_t page : entry->window) window_.release(page);
  for (const int32_t page : entry->compressed) compressed_.release(page);
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

void PrefixCache::make_room(int64_t window_blocks, int64_t compressed_blocks) {
  while (!entries_.empty() && (window_.available() < window_blocks || compressed_.available() < compressed_blocks)) {
    drop(std::prev(entries_.end()));
  }
}

void PrefixCache::clear() {
  while (!entries_.empty()) drop(entries_.begin());
}

}  // namespace megamla::replay
