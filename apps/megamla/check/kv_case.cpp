// kv_encode, kv_decode, kv_insert, gather: records and pages, byte for byte.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/call_op.hpp"
#include "check/kv_formats.hpp"
#include "format/bf16.hpp"
#include "format/kv_record.hpp"
#include "megamla/kv_gather.h"
#include "megamla/kv_insert.h"

namespace megamla::check {
namespace {

// One planar page of n records: all data rows, then all scale rows.
megamla_kv_cache record_page(Run& run, const std::string& format_name, int64_t rows, uint8_t fill) {
  megamla_kv_cache c{};
  c.format = kv_format(format_name);
  c.layout = MEGAMLA_PAGE_PLANAR;
  c.cuda_device = -1;
  c.page_size = std::max<int64_t>(rows, 1);
  c.num_pages = rows > 0 ? 1 : 0;
  c.page_stride = (c.page_size * format::record_bytes(static_cast<megamla_kv_format>(c.format)) + 15) / 16 * 16;
  c.data = run.arena().bytes(c.page_stride, fill);
  return c;
}

}  // namespace

megamla_kv_format kv_format(const std::string& name) {
  for (const megamla_kv_format f : {MEGAMLA_KV_FP8_528, MEGAMLA_KV_NVFP4_288, MEGAMLA_KV_FP8_584}) {
    if (name == format::name(f)) return f;
  }
  throw CaseError("format: expected fp8_528, nvfp4_288 or fp8_584, found '" + name + "'");
}

megamla_kv_cache kv_cache(const megamla_tensor& bytes, const std::string& format_name, const std::string& layout,
                          int64_t page_size, int64_t base_offset) {
  megamla_kv_cache c{};
  c.format = kv_format(format_name);
  c.layout = layout == "interleaved" ? MEGAMLA_PAGE_INTERLEAVED : MEGAMLA_PAGE_PLANAR;
  c.cuda_device = -1;
  c.data = static_cast<char*>(bytes.data) + base_offset;
  c.num_pages = bytes.shape[0];
  c.page_stride = bytes.shape[1];
  c.page_size = page_size;
  return c;
}

void run_kv_encode(Run& run) {
  Case& g = run.golden;
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = g.input("in.x");
  const int64_t rows = p.latent.shape[0];
  p.slot_mapping = run.arena().tensor(MEGAMLA_I64, {rows});
  for (int64_t i = 0; i < rows; ++i) at<int64_t>(p.slot_mapping, i) = i;
  p.cache = record_page(run, g.text("format"), rows, 0xa5);
  call_op(run, p, megamla_kv_insert_implementation, megamla_kv_insert);
  const auto format_kind = static_cast<megamla_kv_format>(p.cache.format);
  const int64_t data_bytes = rows * format::data_bytes(format_kind);
  run.verdict.equal("data", p.cache.data, g.expected("out.data").data, data_bytes);
  run.verdict.equal("scale", static_cast<char*>(p.cache.data) + data_bytes, g.expected("out.scale").data,
                    rows * format::scale_bytes(format_kind));
}

void run_kv_decode(Run& run) {
  Case& g = run.golden;
  const megamla_tensor expected = g.expected("out.x");
  const int64_t rows = expected.shape[0];
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = record_page(run, g.text("format"), rows, 0);
  const auto format_kind = static_cast<megamla_kv_format>(p.cache.format);
  const int64_t data_bytes = rows * format::data_bytes(format_kind);
  std::memcpy(p.cache.data, g.input("in.data").data, static_cast<size_t>(data_bytes));
  std::memcpy(static_cast<char*>(p.cache.data) + data_bytes, g.input("in.scale").data,
              static_cast<size_t>(rows * format::scale_bytes(format_kind)));
  p.seq_lens = run.arena().tensor(MEGAMLA_I32, {1});
  at<int32_t>(p.seq_lens, 0) = static_cast<int32_t>(rows);
  p.block_table = run.arena().tensor(MEGAMLA_I32, {1, 1});
  p.out = run.arena().tensor(MEGAMLA_BF16, {1, rows, 512}, 0xa5);
  call_op(run, p, megamla_kv_gather_implementation, megamla_kv_gather);
  const bool nonfinite = g.has_text("rule") && g.text("rule") == "nonfinite";
  const megamla_tensor subnormal = g.expected("out.subnormal");
  for (int64_t i = 0; i < rows * 512; ++i) {
    const format::Bf16 got = data<const format::Bf16>(p.out)[i];
    const format::Bf16 ref = data<const format::Bf16>(expected)[i];
    const float value = format::to_float(got);
    bool holds = got.bits == ref.bits;
    if (std::isnan(format::to_float(ref))) holds = std::isnan(value) || (nonfinite && std::isinf(value));
    if (data<const uint8_t>(subnormal)[i] != 0) holds |= got.bits == (ref.bits & 0x8000U);
    if (!holds) {
      return run.verdict.require(
          "bits", false,
          fmt::format("row {} dim {}: expected {:#06x}, found {:#06x}", i / 512, i % 512, ref.bits, got.bits));
    }
  }
  run.verdict.require("bits", true, "");
}

void run_kv_insert(Run& run) {
  Case& g = run.golden;
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = g.input("in.latent");
  p.positions = g.input("in.positions");
  p.cos_sin = g.input("in.cos_sin");
  p.slot_mapping = g.input("in.slot_mapping");
  const megamla_tensor bytes = g.input("in.cache");
  p.cache = kv_cache(bytes, g.text("format"), g.text("layout"), g.integer("page_size"), g.integer("base_offset"));
  p.writer = g.text("mode") == "fp32" ? MEGAMLA_WRITER_COMPRESSED : MEGAMLA_WRITER_WINDOW;
  p.compress_ratio = static_cast<int32_t>(g.integer("compress_ratio"));
  call_op(run, p, megamla_kv_insert_implementation, megamla_kv_insert);

  const auto* got = data<const uint8_t>(bytes);
  const megamla_tensor expected = g.expected("out.cache");
  const auto* ref = data<const uint8_t>(expected);
  const megamla_tensor offsets = g.expected("out.alt_offset");
  const megamla_tensor values = g.expected("out.alt_value");
  for (int64_t i = 0; i < bytes.shape[0] * bytes.shape[1]; ++i) {
    bool holds = got[i] == ref[i];
    for (int64_t k = 0; !holds && k < offsets.shape[0]; ++k) {
      holds = at<const int64_t>(offsets, k) == i &&
              (got[i] == at<const uint8_t>(values, k, 0) || got[i] == at<const uint8_t>(values, k, 1));
    }
    if (!holds) {
      return run.verdict.require("bytes", false,
                                 fmt::format("cache byte {}: expected {:#04x}, found {:#04x}", i, ref[i], got[i]));
    }
  }
  run.verdict.require("bytes", true, "");
}

void run_gather(Run& run) {
  Case& g = run.golden;
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = kv_cache(g.input("in.cache"), g.text("format"), g.text("layout"), g.integer("page_size"),
                     g.integer("base_offset"));
  p.seq_lens = g.input("in.seq_lens");
  p.gather_lens = g.optional_input("in.gather_lens");
  p.block_table = g.input("in.block_table");
  p.offset = g.integer("offset");
  const megamla_tensor expected = g.expected("out.workspace");
  p.out = run.arena().tensor(MEGAMLA_BF16, {expected.shape[0], expected.shape[1], 512});
  const int64_t count = expected.shape[0] * expected.shape[1] * 512;
  std::fill_n(data<uint16_t>(p.out), count, static_cast<uint16_t>(g.integer("poison_u16")));
  call_op(run, p, megamla_kv_gather_implementation, megamla_kv_gather);
  run.verdict.equal("bits", p.out.data, expected.data, count * 2);
}

}  // namespace megamla::check
