// kv_insert and kv_gather over pools that no cache holds, and the index transforms.
#include <algorithm>
#include <numeric>
#include <random>

#include "bench/bench.hpp"
#include "check/kv_formats.hpp"
#include "command.hpp"
#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/kv_record.hpp"
#include "megamla/index_ops.h"
#include "megamla/kv_gather.h"
#include "megamla/kv_insert.h"

namespace megamla::bench {
namespace {

constexpr int64_t kDims = 512;
constexpr int64_t kPage = 64;

// A pool with room for `rows` rows, and for at least kColdBytes.
megamla_kv_cache make_pool(app::Arena& arena, const std::string& name, int64_t rows) {
  megamla_kv_cache c{};
  const megamla_kv_format kind = check::kv_format(name);
  c.format = kind;
  c.cuda_device = arena.cuda_device();
  c.page_size = kPage;
  c.page_stride = format::round_up(kPage * format::record_bytes(kind), format::page_alignment(kind));
  c.num_pages = std::max(kColdBytes / c.page_stride, (rows + kPage - 1) / kPage);
  c.data = arena.bytes(c.num_pages * c.page_stride);
  fill_cache(c, 3);
  return c;
}

std::vector<int32_t> shuffled_pages(int64_t count) {
  std::mt19937_64 random(3);
  std::vector<int32_t> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  return pages;
}

double record_bytes(const std::string& format_name) {
  return static_cast<double>(format::record_bytes(check::kv_format(format_name)));
}

}  // namespace

Row time_insert(const Options& o, const std::string& format_name, int64_t rows) {
  Inputs arena(o.device());
  const int sets = input_sets(o, static_cast<double>(rows) * record_bytes(format_name));
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = arena.tensor(MEGAMLA_BF16, {rows, kDims});
  fill_bf16(p.latent.data, rows * kDims, 4);
  p.positions = arena.tensor(MEGAMLA_I64, {rows});
  p.cos_sin = arena.tensor(MEGAMLA_F32, {4096, 64});
  std::fill_n(data<float>(p.cos_sin), 4096 * 64, 0.70710678F);
  for (int64_t t = 0; t < rows; ++t) at<int64_t>(p.positions, t) = t % 4096;
  p.cache = make_pool(arena, format_name, sets * rows);
  p.writer = format_name == "nvfp4_288" ? MEGAMLA_WRITER_COMPRESSED : MEGAMLA_WRITER_WINDOW;
  p.compress_ratio = 1;
  // Set i takes the rows behind those of set i - 1, in pages that lie anywhere.
  const megamla_tensor slots = arena.tensor(MEGAMLA_I64, {sets * rows});
  const std::vector<int32_t> pages = shuffled_pages(p.cache.num_pages);
  for (int64_t i = 0; i < sets * rows; ++i)
    at<int64_t>(slots, i) = pages[static_cast<size_t>(i / kPage)] * kPage + i % kPage;
  p.slot_mapping = slice(slots, 0, rows);
  Row row;
  row.cell = {{"op", "kv_insert"}, {"tokens", rows}, {"format", format_name}};
  row.implementation = implementation(p, o.exec);
  row.bytes = static_cast<double>(rows) * (kDims * 2 + record_bytes(format_name));
  const auto call = [&](int i) {
    p.slot_mapping = slice(slots, i * rows, (i + 1) * rows);
    run_op(arena, p, o.exec);
  };
  time_beside_copies(o, sets, call, row);
  return row;
}

void bench_kv_insert(const Options& o, const Emit& emit) {
  for (const std::string format_name : {"fp8_528", "nvfp4_288", "fp8_584"}) {
    for (const int64_t tokens : o.tokens) emit(time_insert(o, format_name, tokens));
  }
}

Row time_gather(const Options& o, const std::string& format_name, int64_t rows) {
  Inputs arena(o.device());
  const int sets = input_sets(o, static_cast<double>(rows) * record_bytes(format_name));
  const int64_t columns = (rows + kPage - 1) / kPage;
  megamla_kv_gather_params p;
  megamla_kv_gather_init(&p);
  p.cache = make_pool(arena, format_name, sets * columns * kPage);
  p.seq_lens = arena.tensor(MEGAMLA_I32, {1});
  at<int32_t>(p.seq_lens, 0) = static_cast<int32_t>(rows);
  const megamla_tensor tables = arena.tensor(MEGAMLA_I32, {sets, columns});
  std::copy_n(shuffled_pages(p.cache.num_pages).begin(), sets * columns, data<int32_t>(tables));
  p.block_table = slice(tables, 0, 1);
  p.out = arena.tensor(MEGAMLA_BF16, {1, rows, kDims});
  Row row;
  row.cell = {{"op", "kv_gather"}, {"tokens", rows}, {"format", format_name}};
  row.implementation = implementation(p, o.exec);
  row.bytes = static_cast<double>(rows) * (kDims * 2 + record_bytes(format_name));
  const auto call = [&](int i) {
    p.block_table = slice(tables, i, i + 1);
    run_op(arena, p, o.exec);
  };
  time_beside_copies(o, sets, call, row);
  return row;
}

void bench_kv_gather(const Options& o, const Emit& emit) {
  for (const std::string format_name : {"fp8_528", "nvfp4_288", "fp8_584"}) {
    for (const int64_t tokens : o.tokens) emit(time_gather(o, format_name, tokens));
  }
}

// The indexer and the scheduler have just written what these ops read: the inputs are warm, one set of them serves all.
void bench_index_ops(const Options& o, const std::string& op, const Emit& emit) {
  constexpr int kCalls = 64;  // of one timing on the GPU
  constexpr int64_t kTopk = 512;
  constexpr int64_t kSeqLen = 4096;
  for (const int64_t n : o.tokens) {
    Inputs arena(o.device());
    const auto i32 = [&](std::initializer_list<int64_t> shape) { return arena.tensor(MEGAMLA_I32, shape); };
    const megamla_tensor table = i32({n, kSeqLen / 32});
    const megamla_tensor starts = i32({n + 1});
    const megamla_tensor seq_lens = i32({n});
    const megamla_tensor ones = i32({n});
    const megamla_tensor token_to_req = i32({n});
    const megamla_tensor topk = i32({n, kTopk});
    for (int64_t t = 0; t < n; ++t) {
      at<int32_t>(starts, t + 1) = static_cast<int32_t>(t + 1);
      at<int32_t>(seq_lens, t) = kSeqLen;
      at<int32_t>(ones, t) = 128;
      at<int32_t>(token_to_req, t) = static_cast<int32_t>(t);
      for (int64_t k = 0; k < kTopk; ++k) at<int32_t>(topk, t, k) = static_cast<int32_t>(k * 3);
      for (int64_t b = 0; b < table.shape[1]; ++b)
        at<int32_t>(table, t, b) = static_cast<int32_t>(t * table.shape[1] + b);
    }
    Row row;
    row.cell = {{"op", op}, {"tokens", n}};
    if (op == "topk_to_slots") {
      megamla_topk_to_slots_params p;
      megamla_topk_to_slots_init(&p);
      p.topk = topk;
      p.token_to_req = token_to_req;
      p.block_table = table;
      p.slots_per_page = 64;
      p.slots = i32({n, kTopk});
      p.lens = i32({n});
      row.implementation = implementation(p, o.exec);
      row.bytes = static_cast<double>(n * kTopk * 8);
      row.seconds = time_calls(o, kCalls, [&](int) { run_op(arena, p, o.exec); });
    } else if (op == "combine_topk_swa") {
      megamla_combine_topk_swa_params p;
      megamla_combine_topk_swa_init(&p);
      p.topk = topk;
      p.query_start_loc = starts;
      p.seq_lens = seq_lens;
      p.gather_lens = ones;
      p.window = 128;
      p.compress_ratio = 1;
      p.n = kSeqLen;
      p.m = kSeqLen + 128;
      p.indices = i32({n, format::round_up(kTopk + 128, 128)});
      p.lens = i32({n});
      row.implementation = implementation(p, o.exec);
      row.bytes = static_cast<double>(n * (kTopk * 8 + 128 * 4));
      row.seconds = time_calls(o, kCalls, [&](int) { run_op(arena, p, o.exec); });
    } else {
      megamla_swa_metadata_params p;
      megamla_swa_metadata_init(&p);
      p.query_start_loc = starts;
      p.seq_lens = seq_lens;
      p.slot_mapping = arena.tensor(MEGAMLA_I64, {n});
      p.block_table = table;
      p.page_size = 32;
      p.window = 128;
      p.num_decodes = n;
      p.causal = 1;
      p.is_valid_token = arena.tensor(MEGAMLA_U8, {n});
      p.token_to_req = i32({n});
      p.decode_swa_indices = i32({n, 128});
      p.decode_swa_lens = i32({n});
      p.prefill_gather_lens = i32({0});
      row.implementation = implementation(p, o.exec);
      row.bytes = static_cast<double>(n * (128 * 4 + 16));
      row.seconds = time_calls(o, kCalls, [&](int) { run_op(arena, p, o.exec); });
    }
    emit(std::move(row));
  }
}

}  // namespace megamla::bench
