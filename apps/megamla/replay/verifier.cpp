#include "replay/verifier.hpp"

#include <algorithm>
#include <cmath>

#include "command.hpp"
#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "format/kv_record.hpp"
#include "layer_call.hpp"
#include "megamla/kv_insert.h"

namespace megamla::replay {
namespace {

// Rows of a layer that are checked together, unless one step has more: the reference widens every weight once a check.
constexpr int64_t kMostRows = 32;

void check_ok(megamla_status status) {
  if (status != MEGAMLA_OK) throw app::InputError(fmt::format("verification: {}", megamla_last_error()));
}

// Bound of a stored value around the value that it stores: one code step of its format, and the noise of the chain
// before it.
double record_bound(megamla_kv_format kind, double got, double ref, double largest) {
  const double value = std::max(std::abs(got), std::abs(ref));
  return kind == MEGAMLA_KV_NVFP4_288 ? 0.25 * value + largest / 8 : 0.13 * value + largest / 64;
}

void* grow(void* context, void*, int64_t bytes) {
  auto* memory = static_cast<app::Arena*>(context);
  *memory = app::Arena();  // first frees the previous buffer
  return memory->bytes(bytes);
}

}  // namespace

Verifier::Verifier(Model& model, double rate, uint64_t seed) : model_(model), rate_(rate), random_(seed) {
  for (const Model::Layer& layer : model.layers()) waiting_.emplace_back(model, layer);
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

void Verifier::keep(const std::vector<Scheduled>& step, const StepBatch& batch, const std::vector<int64_t>& rows) {
  if (rows.empty()) return;
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t most = std::min(kMostRows, model_.layers().front().config.max_num_batched_tokens);
  if (waiting_.front().count() + count > most) finish();
  for (SampledRows& layer : waiting_) layer.add(step, batch, rows);
}

void Verifier::finish() {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    check(model_.layers()[i], waiting_[i]);
    waiting_[i].clear();
  }
}

void Verifier::check(const Model::Layer& layer, const SampledRows& rows) {
  if (rows.count() == 0) return;
  app::Arena arena;
  SampledRows::Views views = rows.views(arena);
  views.metadata.step_id = ++step_id_;
  megamla_layer_taps taps;
  megamla_layer_taps_init(&taps);
  taps.latent = arena.tensor(MEGAMLA_BF16, {rows.count(), format::kHeadDim});
  megamla_forward_params p;
  megamla_forward_params_init(&p);
  p.x = views.x;
  p.y = arena.tensor(MEGAMLA_F32, {rows.count(), layer.y.shape[1]});
  p.cos_sin = app::on_host(layer.cos_sin);
  p.window = views.window;
  p.compressed = views.compressed;
  p.compressor_state = app::on_host(layer.state);
  p.metadata = &views.metadata;
  p.taps = &taps;
  p.workspace = workspace_.get();
  p.skip_cache_writes = 1;
  megamla_exec exec = model_.exec();
  exec.device = MEGAMLA_DEVICE_REFERENCE;
  check_ok(megamla_layer_forward(layer.reference(), &p, &exec));
  for (int64_t i = 0; i < rows.count(); ++i) {
    compare_y(layer, &at<const float>(p.y, i, 0), rows.y(i), rows.position(i));
    compare_record(layer, slice(taps.latent, i, i + 1), rows.position(i),
                   format::slot_bytes(views.window, rows.window_slot(i)));
  }
  worst_.longest_context = std::max(worst_.longest_context, rows.longest_context());
  worst_.rows += rows.count();
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
void Verifier::compare_record(const Model::Layer& layer, const megamla_tensor& latent, int64_t position,
                              const format::SlotBytes<uint8_t>& stored) {
  app::Arena arena;
  const auto kind = static_cast<megamla_kv_format>(layer.window.format);
  const int64_t stride = (format::record_bytes(kind) + 15) / 16 * 16;
  megamla_kv_insert_params p;
  megamla_kv_insert_init(&p);
  p.latent = latent;
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
