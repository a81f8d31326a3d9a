// Paged caches for tests: a pool block with foreign bytes around the pages, and address space far larger than memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "format/page.hpp"
#include "megamla/types.h"
#include "support/host_region.hpp"

namespace megamla::test {

struct CacheKind {
  megamla_kv_format format;
  megamla_page_layout layout;
};
constexpr CacheKind kCacheKinds[] = {
    {MEGAMLA_KV_FP8_528, MEGAMLA_PAGE_PLANAR},        {MEGAMLA_KV_NVFP4_288, MEGAMLA_PAGE_PLANAR},
    {MEGAMLA_KV_FP8_584, MEGAMLA_PAGE_PLANAR},        {MEGAMLA_KV_FP8_528, MEGAMLA_PAGE_INTERLEAVED},
    {MEGAMLA_KV_NVFP4_288, MEGAMLA_PAGE_INTERLEAVED},
};
inline std::string name_of(CacheKind kind) {
  return std::string(format::name(kind.format)) + (kind.layout == MEGAMLA_PAGE_PLANAR ? " planar" : " interleaved");
}

inline megamla_kv_cache describe_cache(CacheKind kind, void* data, int64_t pages, int64_t page_size, int64_t gap) {
  megamla_kv_cache c{};
  c.data = data;
  c.num_pages = pages;
  c.page_size = page_size;
  c.page_stride = (page_size * format::record_bytes(kind.format) + 15) / 16 * 16 + gap;
  c.format = kind.format;
  c.layout = kind.layout;
  c.cuda_device = -1;
  return c;
}

// A layer's pages within a pool: `gap` bytes of other layers lie before, between and behind the pages.
class PagedCache {
 public:
  PagedCache(CacheKind kind, int64_t pages, int64_t page_size, int64_t gap)
      : cache_(describe_cache(kind, nullptr, pages, page_size, gap)),
        memory_(static_cast<size_t>(pages * cache_.page_stride + gap + 64)) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<uint8_t>(i * 37 + i / 251);
    const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % 16;
    cache_.data = memory_.data() + (misaligned == 0 ? 0 : 16 - misaligned) + gap;
    region_.emplace(memory_.data(), memory_.size());
  }
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  const megamla_kv_cache& view() const { return cache_; }
  int64_t num_slots() const { return format::num_slots(cache_); }
  const std::vector<uint8_t>& bytes() const { return memory_; }
  void restore(const std::vector<uint8_t>& bytes) { std::memcpy(memory_.data(), bytes.data(), bytes.size()); }
  // The same slot in a copy of bytes().
  format::SlotBytes<uint8_t> slot_in(std::vector<uint8_t>& copy, int64_t slot) const {
    const auto here = format::slot_bytes(cache_, slot);
    return {copy.data() + (here.data - memory_.data()), copy.data() + (here.scale - memory_.data())};
  }

 private:
  megamla_kv_cache cache_;
  std::vector<uint8_t> memory_;
  std::optional<HostRegion> region_;
};

// Zeros that take memory only where they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(data_, MAP_FAILED) << "mmap of " << bytes << " bytes of address space: " << std::strerror(errno);
    region_.emplace(data_, bytes_);
  }
  ~SparseMemory() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  void* data() const { return data_; }
  bool ok() const { return data_ != MAP_FAILED; }

 private:
  void* data_;
  size_t bytes_;
  std::optional<HostRegion> region_;
};

inline bool all_zero(const uint8_t* bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] != 0) return false;
  }
  return true;
}

}  // namespace megamla::test
