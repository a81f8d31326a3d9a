#include "replay/sampled_rows.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "command.hpp"
#include "core/tensor.hpp"
#include "format/kv_record.hpp"
#include "format/page.hpp"
#include "layer_call.hpp"

namespace megamla::replay {

KeptRecords::KeptRecords(const megamla_kv_cache& from)
    : from_(app::on_host(from)),
      stride_(format::round_up(format::record_bytes(static_cast<megamla_kv_format>(from.format)), 16)) {}

megamla_kv_cache KeptRecords::view() const {
  if (!present(from_)) return from_;
  const auto count = static_cast<int64_t>(bytes_.size()) / stride_;
  return {const_cast<char*>(bytes_.data()), count, stride_, 1, from_.format, MEGAMLA_PAGE_PLANAR, -1, 0};
}

int32_t KeptRecords::keep(int64_t slot) {
  const auto next = static_cast<int32_t>(static_cast<int64_t>(bytes_.size()) / stride_);
  const auto [place, is_new] = kept_.try_emplace(slot, next);
  if (!is_new) return place->second;
  bytes_.resize(bytes_.size() + static_cast<size_t>(stride_));
  const auto kind = static_cast<megamla_kv_format>(from_.format);
  const auto from = format::slot_bytes(from_, slot);
  const auto to = format::slot_bytes(view(), next);
  std::memcpy(to.data, from.data, static_cast<size_t>(format::data_bytes(kind)));
  std::memcpy(to.scale, from.scale, static_cast<size_t>(format::scale_bytes(kind)));
  return next;
}

void KeptRecords::clear() {
  bytes_.clear();
  kept_.clear();
}

SampledRows::SampledRows(Model& model, const Model::Layer& layer)
    : model_(model), layer_(layer), window_(layer.window), compressed_(layer.compressed) {}

void SampledRows::add(const std::vector<Scheduled>& step, const StepBatch& batch, const std::vector<int64_t>& rows) {
  std::vector<int64_t> owners;  // the requests of the step's rows
  for (size_t s = 0; s < step.size(); ++s)
    owners.insert(owners.end(), static_cast<size_t>(step[s].query), static_cast<int64_t>(s));
  std::vector<Row> added;
  std::vector<int64_t> added_owners;
  const int64_t width = batch.x.shape[1];
  for (const int64_t row : rows) {
    const uint16_t* x = &at<const uint16_t>(batch.x, row, 0);
    model_.fetch(&at<uint16_t>(layer_.y, row, 0), width * 2);
    const uint16_t* y = &at<const uint16_t>(layer_.y, row, 0);
    added.push_back({at<const int64_t>(batch.metadata.positions, row), {x, x + width}, {y, y + width}, {}, {}});
    added_owners.push_back(owners[static_cast<size_t>(row)]);
  }
  list_keys(batch, added_owners, added);
  fetch(added);
  window_.begin_step();
  compressed_.begin_step();
  for (Row& row : added) {
    for (Key& key : row.window) key.slot = window_.keep(key.slot);
    for (Key& key : row.compressed) key.slot = compressed_.keep(key.slot);
  }
  std::move(added.begin(), added.end(), std::back_inserter(rows_));
}

// The keys that the rows see: contract sections 9 and 11.
void SampledRows::list_keys(const StepBatch& batch, const std::vector<int64_t>& owners, std::vector<Row>& rows) const {
  const megamla_layer_config& c = layer_.config;
  app::Arena arena;
  const auto count = static_cast<int64_t>(rows.size());
  const megamla_tensor topk = arena.tensor(MEGAMLA_I32, {count, c.index_topk}, 0xff);
  if (c.compress_ratio > 0) {
    const megamla_tensor positions = arena.tensor(MEGAMLA_I64, {count});
    for (int64_t i = 0; i < count; ++i) at<int64_t>(positions, i) = rows[static_cast<size_t>(i)].position;
    if (megamla_builtin_topk(&positions, c.compress_ratio, &topk) != MEGAMLA_OK)
      throw app::InputError(megamla_last_error());
  }
  const auto key_of = [](const megamla_kv_cache& cache, const megamla_tensor& table, int64_t owner, int64_t index) {
    const int64_t page = at<const int32_t>(table, owner, index / cache.page_size);
    return Key{index, page * cache.page_size + index % cache.page_size};
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t owner = owners[static_cast<size_t>(i)];
    Row& row = rows[static_cast<size_t>(i)];
    for (int64_t p = std::max<int64_t>(0, row.position - c.window + 1); p <= row.position; ++p)
      row.window.push_back(key_of(layer_.window, batch.metadata.window_table, owner, p));
    for (int64_t k = 0; k < c.index_topk && at<const int32_t>(topk, i, k) >= 0; ++k) {
      const int64_t index = at<const int32_t>(topk, i, k);
      row.compressed.push_back(key_of(layer_.compressed, batch.metadata.compressed_table, owner, index));
    }
  }
}

// The pages that the rows' keys are in, from the device to where the views point.
void SampledRows::fetch(const std::vector<Row>& rows) {
  if (layer_.y.cuda_device < 0) return;  // they are there
  std::set<int64_t> window;
  std::set<int64_t> compressed;
  for (const Row& row : rows) {
    for (const Key& key : row.window) window.insert(key.slot / layer_.window.page_size);
    for (const Key& key : row.compressed) compressed.insert(key.slot / layer_.compressed.page_size);
  }
  const auto fetch_pages = [&](const megamla_kv_cache& cache, const std::set<int64_t>& pages) {
    const int64_t bytes = format::page_bytes(static_cast<megamla_kv_format>(cache.format), cache.page_size);
    for (const int64_t page : pages) model_.fetch(static_cast<char*>(cache.data) + page * cache.page_stride, bytes);
  };
  fetch_pages(layer_.window, window);
  fetch_pages(layer_.compressed, compressed);
}

void SampledRows::clear() {
  rows_.clear();
  window_.clear();
  compressed_.clear();
}

int64_t SampledRows::longest_context() const {
  int64_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.position + 1);
  return longest;
}

SampledRows::Views SampledRows::views(app::Arena& arena) const {
  Views v{};
  v.window = window_.view();
  v.compressed = compressed_.view();
  v.x = arena.tensor(MEGAMLA_BF16, {count(), layer_.y.shape[1]});
  megamla_step_metadata_init(&v.metadata);
  megamla_step_metadata& m = v.metadata;
  m.query_start_loc = arena.tensor(MEGAMLA_I32, {count() + 1});
  m.seq_lens = arena.tensor(MEGAMLA_I32, {count()});
  m.positions = arena.tensor(MEGAMLA_I64, {count()});
  m.slot_mapping = arena.tensor(MEGAMLA_I64, {count()});
  m.compressed_slot_mapping = arena.tensor(MEGAMLA_I64, {count()}, 0xff);
  m.state_block = arena.tensor(MEGAMLA_I32, {count()});
  // An entry that no row reads is kNoBlock.
  m.window_table = arena.tensor(MEGAMLA_I32, {count(), longest_context()}, 0xff);
  m.compressed_table = arena.tensor(MEGAMLA_I32, {count(), longest_context()}, 0xff);
  for (int64_t i = 0; i < count(); ++i) {
    const Row& row = rows_[static_cast<size_t>(i)];
    std::copy(row.x.begin(), row.x.end(), &at<uint16_t>(v.x, i, 0));
    at<int32_t>(m.query_start_loc, i + 1) = static_cast<int32_t>(i + 1);
    at<int32_t>(m.seq_lens, i) = static_cast<int32_t>(row.position + 1);
    at<int64_t>(m.positions, i) = row.position;
    at<int64_t>(m.slot_mapping, i) = window_slot(i);
    for (const Key& key : row.window) at<int32_t>(m.window_table, i, key.index) = static_cast<int32_t>(key.slot);
    for (const Key& key : row.compressed)
      at<int32_t>(m.compressed_table, i, key.index) = static_cast<int32_t>(key.slot);
  }
  return v;
}

}  // namespace megamla::replay
