#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/layer_rules.hpp"
#include "format/page.hpp"

namespace megamla::check {
namespace {

// The dims that byte `byte` of a record (data, then scales) holds or scales, as [first, last); the dims of their scale
// group.
struct Touched {
  int64_t first, last;
  int64_t group_first, group_last;
};

Touched touched_dims(megamla_kv_format kind, int64_t byte) {
  const int64_t data_bytes = format::data_bytes(kind);
  const int64_t group = kind == MEGAMLA_KV_FP8_528 ? 32 : kind == MEGAMLA_KV_NVFP4_288 ? 16 : 64;
  if (byte >= data_bytes) {
    const int64_t first = (byte - data_bytes) * group;
    return {first, first + group, first, first + group};
  }
  int64_t first = byte;
  int64_t last = byte + 1;
  if (kind == MEGAMLA_KV_NVFP4_288) {
    first = 2 * byte;
    last = first + 2;
  } else if (kind == MEGAMLA_KV_FP8_584 && byte >= format::kNopeDim) {
    first = format::kNopeDim + (byte - format::kNopeDim) / 2;
    last = first + 1;
  }
  return {first, last, first / group * group, first / group * group + group};
}

}  // namespace

void write_record(const megamla_kv_cache& cache, int64_t slot, const uint8_t* record) {
  const auto kind = static_cast<megamla_kv_format>(cache.format);
  const auto to = format::slot_bytes(cache, slot);
  std::memcpy(to.data, record, static_cast<size_t>(format::data_bytes(kind)));
  std::memcpy(to.scale, record + format::data_bytes(kind), static_cast<size_t>(format::scale_bytes(kind)));
}

PoolRule::PoolRule(Run& run, const megamla_tensor& pool, const megamla_kv_cache& window,
                   const megamla_kv_cache& compressed)
    : run_(run), pool_(pool) {
  Case& g = run.golden;
  expected_ =
      run.arena().tensor(MEGAMLA_U8, {pool.shape[0], pool.shape[1]}, static_cast<uint8_t>(g.integer("pool_fill")));
  const auto fill = [&](Records& records, const megamla_kv_cache& cache, const std::string& kind,
                        const std::string& from) {
    records.cache = cache;
    records.token = g.input(from + kind + "_token", MEGAMLA_I32, {Case::kAny});
    records.bytes =
        g.input(from + kind + "_record", MEGAMLA_U8,
                {records.token.shape[0], format::record_bytes(static_cast<megamla_kv_format>(cache.format))});
    if (!g.has("out." + kind + "_edge")) return;
    const megamla_tensor edges = g.input("out." + kind + "_edge", MEGAMLA_I32, {Case::kAny, 2});
    for (int64_t i = 0; i < edges.shape[0]; ++i) {
      records.edges.insert({at<const int32_t>(edges, i, 0), at<const int32_t>(edges, i, 1)});
    }
  };
  fill(window_, window, "window", "out.");
  if (compressed.format != MEGAMLA_KV_NONE) {
    fill(compressed_, compressed, "compressed", g.has("out.compressed_record") ? "out." : "in.");
  }
}

megamla_kv_cache PoolRule::in_expected(megamla_kv_cache cache) const {
  const int64_t offset = static_cast<char*>(cache.data) - static_cast<char*>(pool_.data);
  cache.data = static_cast<char*>(expected_.data) + offset;
  return cache;
}

void PoolRule::expect(Records& records, int64_t begin, int64_t end, const megamla_tensor& slots) {
  for (int64_t i = 0; i < records.token.shape[0]; ++i) {
    const int64_t t = at<const int32_t>(records.token, i);
    if (t < begin || t >= end) continue;
    const int64_t slot = at<const int64_t>(slots, t);
    if (slot < 0 || slot >= format::num_slots(records.cache)) {
      run_.golden.refuse("slot of a stored record", fmt::format("a slot in [0, {})", format::num_slots(records.cache)),
                         fmt::format("{}", slot));
    }
    write_record(in_expected(records.cache), slot, &at<const uint8_t>(records.bytes, i, 0));
    records.newest[slot] = i;
  }
}

void PoolRule::expect_step(int64_t begin, int64_t end, const megamla_tensor& window_slots,
                           const megamla_tensor& compressed_slots) {
  expect(window_, begin, end, window_slots);
  if (compressed_.cache.format != MEGAMLA_KV_NONE) expect(compressed_, begin, end, compressed_slots);
}

// Where an edge byte differs: the decoded values are close, and the byte found becomes the expected one.
void PoolRule::judge(Records& records, int64_t slot, int64_t record) {
  const auto kind = static_cast<megamla_kv_format>(records.cache.format);
  const auto got = format::slot_bytes(records.cache, slot);
  const auto want = format::slot_bytes(in_expected(records.cache), slot);
  const int64_t data_bytes = format::data_bytes(kind);
  float got_values[format::kHeadDim];
  float ref_values[format::kHeadDim];
  bool decoded = false;
  for (int64_t b = 0; b < format::record_bytes(kind); ++b) {
    uint8_t& g = b < data_bytes ? got.data[b] : got.scale[b - data_bytes];
    uint8_t& w = b < data_bytes ? want.data[b] : want.scale[b - data_bytes];
    if (g == w || !records.edges.contains({record, b})) continue;
    if (!decoded) {
      const uint8_t* stored = &at<const uint8_t>(records.bytes, record, 0);
      format::decode_row(kind, got.data, got.scale, got_values);
      format::decode_row(kind, stored, stored + data_bytes, ref_values);
      decoded = true;
    }
    const Touched dims = touched_dims(kind, b);
    float largest = 0;
    for (int64_t d = dims.group_first; d < dims.group_last; ++d) largest = std::max(largest, std::abs(ref_values[d]));
    for (int64_t d = dims.first; d < dims.last; ++d) {
      const double bound = kind == MEGAMLA_KV_NVFP4_288
                               ? 0.25 * std::max(std::abs(got_values[d]), std::abs(ref_values[d])) + largest / 8
                               : 0.13 * std::max(std::abs(got_values[d]), std::abs(ref_values[d])) + largest / 64;
      run_.verdict.at_most("pool edge", std::abs(got_values[d] - ref_values[d]) / bound,
                           fmt::format("slot {} byte {}", slot, b));
    }
    w = g;
  }
}

void PoolRule::check(int64_t step) {
  for (Records* records : {&window_, &compressed_}) {
    for (const auto& [slot, record] : records->newest) judge(*records, slot, record);
  }
  run_.verdict.equal(fmt::format("pool after step {}", step), pool_.data, expected_.data,
                     pool_.shape[0] * pool_.shape[1]);
}

}  // namespace megamla::check
