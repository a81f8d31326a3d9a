// Pages of prompt prefixes that later requests may reuse, by the trace's 512-token block ids.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "replay/block_pool.hpp"
#include "replay/request.hpp"

namespace megamla::replay {

class PrefixCache {
 public:
  PrefixCache(BlockPool& window, BlockPool& compressed) : window_(window), compressed_(compressed) {}

  // Blocks of the request's prompt that are cached from its beginning, at most `max_blocks`; their pages are shared
  // into its tables.
  int64_t reuse(Request& request, int64_t max_blocks);
  // Remembers a block of the prompt whose tokens are in the caches, or will be before a later request attends to them.
  void insert(const Request& request, int64_t block);
  // Forgets least recently used prefixes until both pools have as many free blocks, or nothing is left.
  void make_room(int64_t window_blocks, int64_t compressed_blocks);
  void clear();

 private:
  struct Entry {
    uint64_t key;
    std::vector<int32_t> window;      // pages of the block's last 128 tokens: what a successor's window can reach
    std::vector<int32_t> compressed;  // pages of all its tokens
  };
  void drop(std::list<Entry>::iterator entry);

  BlockPool& window_;
  BlockPool& compressed_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_key_;
};

}  // namespace megamla::replay
