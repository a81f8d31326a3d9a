#include "replay/verifier.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "command.hpp"
#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "format/kv_record.hpp"
#include "format/page.hpp"
#include "layer_call.hpp"
#include "megamla/kv_insert.h"

namespace megamla::replay {
namespace {

void check_ok(megamla_status status) {
  if (status != MEGAMLA_OK) throw app::InputError(fmt::format("verification: {}", megamla_last_error()));
}

// Bound of a stored value around the value that it stores: one code step of its format, and the noise of the chain
// before it.
double record_bound(megamla_kv_format kind, double got, double ref, double largest) {
  const double value = std::max(std::abs(got), std::abs(ref));
  return kind == MEGAMLA_KV_NVFP4_288 ? 0.25 * value + largest / 8 : 0.13 * value + largest / 64;
}

void* grow(void* context, void*, int64_t bytes) { return static_cast<app::Arena*>(context)->bytes(bytes); }

}  // namespace

struct Verifier::Rows {
  megamla_step_metadata metadata;
  megamla_tensor x;
};

Verifier::Verifier(Model& model, double rate, uint64_t seed) : model_(model), rate_(rate), random_(seed) {
  megamla_workspace* made = nullptr;
  check_ok(megamla_workspace_create(nullptr, 0, grow, &workspace_memory_, &made));
  workspace_.reset(made);
}

std::vector<int64_t> Verifier::choose(const std::vector<Scheduled>& step) {
  std::vector<int64_t> rows;
  if (rate_ <= 0) return rows;
  std::bernoulli_distribution sampled(std::min(rate_, 1.0));
  int64_t row = 0;
  for (const Scheduled& scheduled : step) {
    const Request& request = *scheduled.request;
    for (int64_t i = 0; i < scheduled.query; ++i, ++row) {
      const bool last_of_chunk = request.prefilling() && i + 1 == scheduled.query;
      const bool last_of_request = request.computed + i + 1 == request.total();
      if (sampled(random_) || last_of_chunk || last_of_request) rows.push_back(row);
    }
  }
  return rows;
}

Verifier::Rows Verifier::gather(const std::vector<Scheduled>& step, const StepBatch& batch,
                                const std::vector<int64_t>& rows, app::Arena& arena) const {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t width = batch.x.shape[1];
  Rows r{};
  megamla_step_metadata_init(&r.metadata);
  megamla_step_metadata& m = r.metadata;
  m.query_start_loc = arena.tensor(MEGAMLA_I32, {count + 1});
  m.seq_lens = arena.tensor(MEGAMLA_I32, {count});
  m.positions = arena.tensor(MEGAMLA_I64, {count});
  m.slot_mapping = arena.tensor(MEGAMLA_I64, {count});
  m.compressed_slot_mapping = arena.tensor(MEGAMLA_I64, {count}, 0xff);
  m.state_block = arena.tensor(MEGAMLA_I32, {count});
  m.window_table = arena.tensor(MEGAMLA_I32, {count, batch.metadata.window_table.shape[1]});
  m.compressed_table = arena.tensor(MEGAMLA_I32, {count, batch.metadata.compressed_table.shape[1]});
  m.step_id = batch.metadata.step_id;
  r.x = arena.tensor(MEGAMLA_BF16, {count, width});
  std::vector<int64_t> owner;
  for (size_t s = 0; s < step.size(); ++s)
    owner.insert(owner.end(), static_cast<size_t>(step[s].query), static_cast<int64_t>(s));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    const int64_t request = owner[static_cast<size_t>(row)];
    const int64_t position = at<const int64_t>(batch.metadata.positions, row);
    at<int32_t>(m.query_start_loc, i + 1) = static_cast<int32_t>(i + 1);
    at<int32_t>(m.seq_lens, i) = static_cast<int32_t>(position + 1);
    at<int64_t>(m.positions, i) = position;
    at<int64_t>(m.slot_mapping, i) = at<const int64_t>(batch.metadata.slot_mapping, row);
    for (const auto& [to, from] : {std::pair{&m.window_table, &batch.metadata.window_table},
                                   std::pair{&m.compressed_table, &batch.metadata.compressed_table}}) {
      std::copy_n(&at<const int32_t>(*from, request, 0), from->shape[1], &at<int32_t>(*to, i, 0));
    }
    std::copy_n(&at<const uint16_t>(batch.x, row, 0), width, &at<uint16_t>(r.x, i, 0));
  }
  return r;
}

void Verifier::check(const Model::Layer& layer, const std::vector<Scheduled>& step, const StepBatch& batch,
                     const std::vector<int64_t>& rows) {
  if (rows.empty()) return;
  app::Arena arena;
  const Rows chosen = gather(step, batch, rows, arena);
  const auto count = static_cast<int64_t>(rows.size());
  fetch(layer, chosen.metadata, rows);
  megamla_layer_taps taps;
  megamla_layer_taps_init(&taps);
  taps.latent = arena.tensor(MEGAMLA_BF16, {count, format::kHeadDim});
  megamla_forward_params p;
  megamla_forward_params_init(&p);
  p.x = chosen.x;
  p.y = arena.tensor(MEGAMLA_F32, {count, layer.y.shape[1]});
  p.cos_sin = app::on_host(layer.cos_sin);
  p.window = app::on_host(layer.window);
  p.compressed = app::on_host(layer.compressed);
  p.compressor_state = app::on_host(layer.state);
  p.metadata = &chosen.metadata;
  p.taps = &taps;
  p.workspace = workspace_.get();
  p.skip_cache_writes = 1;
  megamla_exec exec = model_.exec();
  exec.device = MEGAMLA_DEVICE_REFERENCE;
  check_ok(megamla_layer_forward(layer.reference(), &p, &exec));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    const int64_t position = at<const int64_t>(chosen.metadata.positions, i);
    compare_y(layer, &at<const float>(p.y, i, 0), &at<const uint16_t>(layer.y, row, 0), position);
    compare_record(layer, taps.latent, i, position, at<const int64_t>(chosen.metadata.slot_mapping, i));
    worst_.longest_context = std::max(worst_.longest_context, position + 1);
    ++worst_.rows;
  }
}

// Rows of y, and the pages that the rows' keys are in, from the device to where the views point.
void Verifier::fetch(const Model::Layer& layer, const megamla_step_metadata& m, const std::vector<int64_t>& rows) {
  if (layer.y.cuda_device < 0) return;  // it is there
  const megamla_layer_config& c = layer.config;
  std::set<int32_t> window;
  std::set<int32_t> compressed;
  app::Arena arena;
  const megamla_tensor topk = arena.tensor(MEGAMLA_I32, {m.positions.shape[0], c.index_topk});
  if (c.compress_ratio > 0) check_ok(megamla_builtin_topk(&m.positions, c.compress_ratio, &topk));
  for (int64_t i = 0; i < m.positions.shape[0]; ++i) {
    const int64_t position = at<const int64_t>(m.positions, i);
    for (int64_t p = std::max<int64_t>(0, position - c.window + 1); p <= position; ++p)
      window.insert(at<const int32_t>(m.window_table, i, p / layer.window.page_size));
    for (int64_t k = 0; k < c.index_topk && c.compress_ratio > 0 && at<int32_t>(topk, i, k) >= 0; ++k)
      compressed.insert(at<const int32_t>(m.compressed_table, i, at<int32_t>(topk, i, k) / layer.compressed.page_size));
  }
  const auto fetch_pages = [&](const megamla_kv_cache& cache, const std::set<int32_t>& pages) {
    const int64_t bytes = cache.page_size * format::record_bytes(static_cast<megamla_kv_format>(cache.format));
    for (const int32_t page : pages) model_.fetch(static_cast<char*>(cache.data) + page * cache.page_stride, bytes);
  };
  fetch_pages(layer.window, window);
  if (c.compress_ratio > 0) fetch_pages(layer.compressed, compressed);
  for (const int64_t row : rows) model_.fetch(&at<uint16_t>(layer.y, row, 0), layer.y.shape[1] * 2);
}

void Verifier::compare_y(const Model::Layer& layer, const float* ref, const uint16_t* got, int64_t position) {
  const int64_t width = model_.config().hidden_size;
  double squares = 0;
  double error_squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(ref[i]) * ref[i];
  const double rms = std::sqrt(squares / static_cast<double>(width));
  double element = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double error = std::abs(static_cast<double>(format::to_float({got[i]})) - ref[i]);
    error_squares += error * error;
    const double share = error / (std::abs(ref[i]) / 256 + 0.1 * rms);
    element = std::isnan(share) ? INFINITY : std::max(element, share);
  }
  const double l2 = squares > 0 ? std::sqrt(error_squares / squares) : 0;
  worst_.y_l2 = std::max(worst_.y_l2, std::isnan(l2) ? INFINITY : l2);
  worst_.y_element = std::max(worst_.y_element, element);
  if (!(l2 <= 2e-2) || !(element <= 1))
    fail(layer, position, fmt::format("y: L2 {:.3g} (bound 0.02), element {:.3g} of its bound", l2, element));
}

// The reference's latent, rotated and encoded into a cache of one slot, beside the record that the step wrote.
void Verifier::compare_record(const Model::Layer& layer, const megamla_tensor& latent, int64_t index, int64_t position,
                              int64_t slot) {
  app::Arena arena;
  const auto kind = static_cast<megamla_kv_format>(layer.window.format);
  const int64_t stride = (format::record_bytes(kind) + 15) / 16 * 16;
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = slice(latent, index, index + 1);
  p.positions = arena.tensor(MEGAMLA_I64, {1});
  at<int64_t>(p.positions, 0) = position;
  p.cos_sin = app::on_host(layer.cos_sin);
  p.slot_mapping = arena.tensor(MEGAMLA_I64, {1});
  p.cache = {arena.bytes(stride), 1, stride, 1, kind, MEGAMLA_PAGE_PLANAR, -1, 0};
  p.writer = MEGAMLA_WRITER_WINDOW;
  megamla_exec exec = model_.exec();
  exec.device = MEGAMLA_DEVICE_REFERENCE;
  check_ok(megamla_kv_insert(&p, &exec));
  float got[format::kHeadDim];
  float ref[format::kHeadDim];
  const auto stored = format::slot_bytes(app::on_host(layer.window), slot);
  const auto expected = format::slot_bytes(p.cache, 0);
  format::decode_row(kind, stored.data, stored.scale, got);
  format::decode_row(kind, expected.data, expected.scale, ref);
  constexpr int kGroup = 64;
  double worst = 0;
  for (int begin = 0; begin < format::kHeadDim; begin += kGroup) {
    double largest = 0;
    for (int d = begin; d < begin + kGroup; ++d) largest = std::max<double>(largest, std::abs(ref[d]));
    for (int d = begin; d < begin + kGroup; ++d) {
      const double error = std::abs(got[d] - ref[d]);
      const double share = error == 0 ? 0 : error / record_bound(kind, got[d], ref[d], largest);
      worst = std::isnan(share) ? INFINITY : std::max(worst, share);
    }
  }
  worst_.record = std::max(worst_.record, worst);
  if (!(worst <= 1)) fail(layer, position, fmt::format("window record: {:.3g} of its bound", worst));
}

void Verifier::fail(const Model::Layer& layer, int64_t position, const std::string& what) {
  worst_.holds = false;
  if (worst_.first_failure.empty())
    worst_.first_failure = fmt::format("layer {} position {}: {}", layer.id, position, what);
}

}  // namespace megamla::replay
