#include "inspect/pages.hpp"

#include <fmt/format.h>

#include "command.hpp"
#include "format/page.hpp"
#include "io/mapped_file.hpp"
#include "megamla/page_layout.h"
#include "text.hpp"

namespace megamla::app {
namespace {

std::string layout_word(int32_t layout) {
  return layout == MEGAMLA_PAGE_PLANAR        ? "planar"
         : layout == MEGAMLA_PAGE_INTERLEAVED ? "interleaved"
                                              : "not to be told";
}

megamla_kv_cache cache_of(const std::string& path, std::span<const uint8_t> bytes, const PagesOptions& options) {
  megamla_kv_cache cache{};
  cache.format = options.format == format::name(MEGAMLA_KV_NVFP4_288) ? MEGAMLA_KV_NVFP4_288 : MEGAMLA_KV_FP8_528;
  const auto kind = static_cast<megamla_kv_format>(cache.format);
  cache.page_size = options.page_size;
  cache.page_stride =
      options.page_stride > 0 ? options.page_stride : format::padded_page_bytes(kind, options.page_size);
  cache.cuda_device = -1;
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t page = format::page_bytes(kind, options.page_size);
  if (size - options.offset < page) {
    throw InputError(fmt::format("{}: expected at least one page of {} bytes at byte {}, found {} bytes", path, page,
                                 options.offset, size));
  }
  cache.num_pages = (size - options.offset - page) / cache.page_stride + 1;
  cache.data = const_cast<uint8_t*>(bytes.data()) + options.offset;  // only read
  return cache;
}

}  // namespace

PagesReport inspect_pages(const std::string& path, const PagesOptions& options) {
  Result<io::MappedFile> file = io::MappedFile::open(path);
  if (!file.ok()) throw InputError(file.status().message());
  const megamla_kv_cache cache = cache_of(path, file.value().bytes(), options);
  double planar = 0;
  double interleaved = 0;
  int32_t likely = -1;
  if (megamla_page_layout_scores(&cache, nullptr, 0, &planar, &interleaved, &likely) != MEGAMLA_OK)
    throw InputError(megamla_last_error());
  fmt::print("{}: {} pages of {} {} records, {} bytes apart\n", path, cache.num_pages, cache.page_size, options.format,
             cache.page_stride);
  Table table({"read as", "scale groups that an encoder can have written"});
  table.add({"planar", fmt::format("{:.1f}%", planar * 100)});
  table.add({"interleaved", fmt::format("{:.1f}%", interleaved * 100)});
  table.print();
  const bool as_expected = options.expected.empty() || options.expected == layout_word(likely);
  fmt::print("layout: {}{}\n", layout_word(likely), as_expected ? "" : fmt::format(", expected {}", options.expected));
  return {{{"kind", "pages"},
           {"pages", cache.num_pages},
           {"planar", planar},
           {"interleaved", interleaved},
           {"layout", layout_word(likely)}},
          as_expected};
}

}  // namespace megamla::app
