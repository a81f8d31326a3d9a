// megamla inspect POOL: which page layout a dump of a cache's pages has.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace megamla::app {

struct PagesOptions {
  std::string format;       // "fp8_528" or "nvfp4_288"; empty: the file is no dump of pages
  int64_t page_size = 32;   // slots of a page
  int64_t page_stride = 0;  // bytes from page to page; 0: a page of the format as engines pad it
  int64_t offset = 0;       // of the layer's first page in the file
  std::string expected;     // "planar", "interleaved", or empty
};

struct PagesReport {
  nlohmann::json record;
  bool as_expected;
};

// Prints the scores of both layouts. Throws InputError.
PagesReport inspect_pages(const std::string& path, const PagesOptions& options);

}  // namespace megamla::app
