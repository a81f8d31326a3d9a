// Cache views from a case's names.
#pragma once

#include "check/case.hpp"

namespace megamla::check {

// "fp8_528", "nvfp4_288", "fp8_584". Throws CaseError.
megamla_kv_format kv_format(const std::string& name);
// `bytes` U8 [num_pages, page_stride]; this layer's pages begin `base_offset` bytes into each block. Throws CaseError
// unless every record lies within `bytes`.
megamla_kv_cache kv_cache(const megamla_tensor& bytes, const std::string& format, const std::string& layout,
                          int64_t page_size, int64_t base_offset);

}  // namespace megamla::check
