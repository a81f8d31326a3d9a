#include "check/kv_formats.hpp"

#include "format/kv_record.hpp"

namespace megamla::check {

megamla_kv_format kv_format(const std::string& name) {
  for (const megamla_kv_format f : {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584}) {
    if (name == format::name(f)) return f;
  }
  throw CaseError("format: expected fp8_528, nvfp4_288 or fp8_584, found '" + name + "'");
}

megamla_kv_cache kv_cache(const megamla_tensor& bytes, const std::string& format_name, const std::string& layout,
                          int64_t page_size, int64_t base_offset) {
  if (layout != "planar" && layout != "interleaved") {
    throw CaseError("layout: expected planar or interleaved, found '" + layout + "'");
  }
  megamla_kv_cache c{};
  c.format = kv_format(format_name);
  c.layout = layout == "interleaved" ? MEGAMLA_PAGE_INTERLEAVED : MEGAMLA_PAGE_PLANAR;
  c.cuda_device = bytes.cuda_device;
  c.num_pages = bytes.shape[0];
  c.page_stride = bytes.shape[1];
  c.page_size = page_size;
  const int64_t record = format::record_bytes(static_cast<megamla_kv_format>(c.format));
  if (page_size < 1 || base_offset < 0 || base_offset > c.page_stride ||
      page_size > (c.page_stride - base_offset) / record) {
    throw CaseError(fmt::format("cache: expected {} records of {} bytes at byte {} of a page of {} bytes to fit",
                                page_size, record, base_offset, c.page_stride));
  }
  c.data = static_cast<char*>(bytes.data) + base_offset;
  return c;
}

}  // namespace megamla::check
