// kv_encode, kv_decode, kv_insert, gather: records and pages, byte for byte.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "check/call_op.hpp"
#include "check/kv_formats.hpp"
#include "check/runners.hpp"
#include "format/bf16.hpp"
#include "format/kv_record.hpp"

namespace megamla::check {
namespace {

constexpr int64_t kDims = 512;

// One planar page of n records: all data rows, then all scale rows.
struct RecordPage {
  RecordPage(Run& run, int64_t row_count, uint8_t fill) : rows(row_count) {
    const megamla_kv_format kind = kv_format(run.golden.text("format"));
    cache.format = kind;
    cache.layout = MEGAMLA_PAGE_PLANAR;
    cache.cuda_device = run.arena().cuda_device();
    cache.page_size = std::max<int64_t>(rows, 1);
    cache.num_pages = rows > 0 ? 1 : 0;
    cache.page_stride = (cache.page_size * format::record_bytes(kind) + 15) / 16 * 16;
    cache.data = run.arena().bytes(cache.page_stride, fill);
    data_row = format::data_bytes(kind);
    scale_row = format::scale_bytes(kind);
  }
  char* records() const { return static_cast<char*>(cache.data); }
  char* scales() const { return records() + rows * data_row; }

  megamla_kv_cache cache{};
  int64_t rows, data_row = 0, scale_row = 0;
};

// Data and scales are stored with a dtype that depends on the format: any of one byte per element.
megamla_tensor record_bytes_of(Run& run, const std::string& name, int64_t rows, int64_t row_bytes) {
  const megamla_tensor t = run.golden.input(name);
  if (t.ndim != 2 || t.shape[0] != rows || t.shape[1] != row_bytes || bytes_of(t) != rows * row_bytes) {
    run.golden.refuse(name, fmt::format("[{}, {}] bytes", rows, row_bytes), fmt::format("{} bytes", bytes_of(t)));
  }
  return t;
}

void compare_decoded(Run& run, const megamla_tensor& got_rows, const megamla_tensor& expected) {
  Case& g = run.golden;
  const bool nonfinite = g.has_text("rule") && g.text("rule") == "nonfinite";
  const megamla_tensor subnormal = g.expected("out.subnormal", MEGAMLA_U8, {expected.shape[0], kDims});
  run.verdict.require("bits", true, "");
  for (int64_t i = 0; i < count_of(expected); ++i) {
    const format::Bf16 got = data<const format::Bf16>(got_rows)[i];
    const format::Bf16 ref = data<const format::Bf16>(expected)[i];
    const float value = format::to_float(got);
    bool holds = got.bits == ref.bits;
    if (std::isnan(format::to_float(ref))) holds = std::isnan(value) || (nonfinite && std::isinf(value));
    if (data<const uint8_t>(subnormal)[i] != 0) holds = holds || got.bits == (ref.bits & 0x8000U);
    run.verdict.require("bits", holds, [&] {
      return fmt::format("row {} dim {}: expected {:#06x}, found {:#06x}", i / kDims, i % kDims, ref.bits, got.bits);
    });
  }
}

// Every byte equal; a byte that depends on the order of the rotation may hold either alternative.
void compare_cache(Run& run, const megamla_tensor& bytes) {
  Case& g = run.golden;
  const megamla_tensor expected = g.expected("out.cache", MEGAMLA_U8, {bytes.shape[0], bytes.shape[1]});
  const megamla_tensor offsets = g.expected("out.alt_offset", MEGAMLA_I64, {Case::kAny});
  const megamla_tensor values = g.expected("out.alt_value", MEGAMLA_U8, {offsets.shape[0], 2});
  std::unordered_map<int64_t, int64_t> alternative;
  for (int64_t k = 0; k < offsets.shape[0]; ++k) alternative[at<const int64_t>(offsets, k)] = k;
  run.verdict.require("bytes", true, "");
  for (int64_t i = 0; i < count_of(expected); ++i) {
    const uint8_t got = data<const uint8_t>(bytes)[i];
    const uint8_t ref = data<const uint8_t>(expected)[i];
    if (got == ref) continue;
    const auto found = alternative.find(i);
    const bool holds = found != alternative.end() && (got == at<const uint8_t>(values, found->second, 0) ||
                                                      got == at<const uint8_t>(values, found->second, 1));
    run.verdict.require("bytes", holds, [&] {
      return fmt::format("page {} byte {}: expected {:#04x}, found {:#04x}", i / bytes.shape[1], i % bytes.shape[1],
                         ref, got);
    });
  }
}

}  // namespace

void run_kv_encode(Run& run) {
  Case& g = run.golden;
  api::KvInsert p;
  p.latent = g.input("in.x", MEGAMLA_BF16, {Case::kAny, kDims});
  const RecordPage page(run, p.latent.shape[0], kUnwritten);
  p.slot_mapping = run.arena().tensor(MEGAMLA_I64, {page.rows});
  for (int64_t i = 0; i < page.rows; ++i) at<int64_t>(p.slot_mapping, i) = i;
  p.cache = page.cache;
  call_op(run, p);
  run.verdict.equal("data", page.records(), record_bytes_of(run, "out.data", page.rows, page.data_row).data,
                    page.rows * page.data_row);
  run.verdict.equal("scale", page.scales(), record_bytes_of(run, "out.scale", page.rows, page.scale_row).data,
                    page.rows * page.scale_row);
}

void run_kv_decode(Run& run) {
  const megamla_tensor expected = run.golden.expected("out.x", MEGAMLA_BF16, {Case::kAny, kDims});
  const RecordPage page(run, expected.shape[0], 0);
  std::memcpy(page.records(), record_bytes_of(run, "in.data", page.rows, page.data_row).data,
              static_cast<size_t>(page.rows * page.data_row));
  std::memcpy(page.scales(), record_bytes_of(run, "in.scale", page.rows, page.scale_row).data,
              static_cast<size_t>(page.rows * page.scale_row));
  api::KvGather p;
  p.cache = page.cache;
  p.seq_lens = run.arena().tensor(MEGAMLA_I32, {1});
  at<int32_t>(p.seq_lens, 0) = static_cast<int32_t>(page.rows);
  p.block_table = run.arena().tensor(MEGAMLA_I32, {1, 1});  // page 0
  p.out = run.arena().tensor(MEGAMLA_BF16, {1, page.rows, kDims}, kUnwritten);
  call_op(run, p);
  compare_decoded(run, p.out, expected);
}

void run_kv_insert(Run& run) {
  Case& g = run.golden;
  api::KvInsert p;
  p.latent = g.input("in.latent");
  p.positions = g.input("in.positions");
  p.cos_sin = g.input("in.cos_sin");
  p.slot_mapping = g.input("in.slot_mapping");
  const megamla_tensor bytes = g.input("in.cache", MEGAMLA_U8, {Case::kAny, Case::kAny});
  p.cache = kv_cache(bytes, g.text("format"), g.text("layout"), g.integer("page_size"), g.integer("base_offset"));
  p.writer = g.text("mode") == "fp32" ? MEGAMLA_WRITER_COMPRESSED : MEGAMLA_WRITER_WINDOW;
  if (p.writer == MEGAMLA_WRITER_COMPRESSED) p.compress_ratio = static_cast<int32_t>(g.integer("compress_ratio", 1, 2));
  call_op(run, p);
  compare_cache(run, bytes);
}

void run_gather(Run& run) {
  Case& g = run.golden;
  api::KvGather p;
  p.cache = kv_cache(g.input("in.cache", MEGAMLA_U8, {Case::kAny, Case::kAny}), g.text("format"), g.text("layout"),
                     g.integer("page_size"), g.integer("base_offset"));
  p.seq_lens = g.input("in.seq_lens");
  p.gather_lens = g.optional_input("in.gather_lens");
  p.block_table = g.input("in.block_table");
  p.offset = g.integer("offset");
  p.out = output_like(run, "out.workspace", MEGAMLA_BF16, {Case::kAny, Case::kAny, kDims});
  std::fill_n(data<uint16_t>(p.out), count_of(p.out), static_cast<uint16_t>(g.integer("poison_u16", 0, 0xffff)));
  call_op(run, p);
  compare_equal(run, "out.workspace", p.out);
}

}  // namespace megamla::check
