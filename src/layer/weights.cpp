#include "layer/weights.hpp"

#include <cstring>

#include "core/validate.hpp"
#include "layer/call.hpp"
#include "layer/config.hpp"
#include "megamla/permute_weights.h"

namespace megamla::layer {
namespace {

constexpr int64_t kBlock = 32;  // weight scales: one per 32 x 32

// Rows begin .. begin+rows-1 of the first dimension of a contiguous tensor.
megamla_tensor rows_of(const megamla_tensor& t, int64_t begin, int64_t rows) { return slice(t, begin, begin + rows); }

int64_t bytes_of(const megamla_tensor& t) {
  int64_t bytes = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  for (int d = 0; d < t.ndim; ++d) bytes *= t.shape[d];
  return bytes;
}

// Where the CPU makes the contents of a buffer: in the buffer itself, or for a GPU in host memory that `finish`
// uploads.
class Staging {
 public:
  explicit Staging(Buffer& buffer) : buffer_(buffer), view_(buffer.view()) {
    if (view_.cuda_device < 0) return;
    memory_.resize(static_cast<size_t>(buffer.bytes()));
    view_.data = memory_.data();
    view_.cuda_device = -1;
  }
  const megamla_tensor& view() const { return view_; }
  Status finish() { return memory_.empty() ? Status() : buffer_.write(0, memory_.data(), buffer_.bytes()); }

 private:
  Buffer& buffer_;
  megamla_tensor view_;
  std::vector<char> memory_;
};

}  // namespace

Status Buffer::allocate(int32_t cuda_device, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  view_ = host_tensor(nullptr, dtype, shape);
  view_.cuda_device = cuda_device;
  MEGAMLA_RETURN_IF_ERROR(memory_.allocate(cuda_device, bytes_of(view_)));
  view_.data = memory_.data();
  return {};
}

int64_t Weights::bytes() const {
  int64_t total = 0;
  for (const Buffer* b : {&wqa_wkv, &wqa_wkv_scale, &q_norm, &kv_norm, &wq_b, &wq_b_scale, &attn_sink, &wo_a,
                          &wo_a_scale, &wo_b, &wo_b_scale, &compressor, &compressor_norm}) {
    total += b->bytes();
  }
  return total;
}

WeightLoader::WeightLoader(const megamla_layer_config& config, int32_t cuda_device)
    : config_(config),
      cuda_device_(cuda_device),
      heads_(config.num_heads / config.tp_size),
      groups_(config.o_groups / config.tp_size) {
  specify();
}

void WeightLoader::specify() {
  const int64_t hidden = config_.hidden_size;
  const int64_t q_lora = config_.q_lora_rank;
  const int64_t q_rows = config_.num_heads * config_.head_dim;
  const int64_t z_columns = config_.o_groups * config_.o_lora_rank;
  const auto fp8 = [&](const std::string& name, int64_t rows, int64_t columns) {
    specs_[name + ".weight"] = {MEGAMLA_F8_E4M3, {rows, columns}, name + ".scale"};
    specs_[name + ".scale"] = {
        MEGAMLA_F8_E8M0, {(rows + kBlock - 1) / kBlock, (columns + kBlock - 1) / kBlock}, name + ".weight"};
  };
  fp8("wq_a", q_lora, hidden);
  fp8("wkv", config_.head_dim, hidden);
  fp8("wq_b", q_rows, q_lora);
  fp8("wo_a", z_columns, 8 * config_.head_dim);
  fp8("wo_b", hidden, z_columns);
  specs_["q_norm.weight"] = {MEGAMLA_BF16, {q_lora}, ""};
  specs_["kv_norm.weight"] = {MEGAMLA_BF16, {config_.head_dim}, ""};
  specs_["attn_sink"] = {MEGAMLA_F32, {config_.num_heads}, ""};
  if (role_of(config_) == MEGAMLA_ROLE_KV_SOURCE) {
    specs_["compressor.norm.weight"] = {MEGAMLA_BF16, {config_.head_dim}, ""};
    specs_["compressor.wkv.weight"] = {MEGAMLA_BF16, {config_.head_dim, hidden}, ""};
    if (config_.compress_ratio == 2) specs_["compressor.wgate.weight"] = {MEGAMLA_BF16, {config_.head_dim, hidden}, ""};
  }
}

Status WeightLoader::check(std::span<const megamla_named_tensor> tensors, Given* given) const {
  for (const megamla_named_tensor& entry : tensors) {
    if (entry.name == nullptr) return invalid_argument("load: name: expected a string, got NULL");
    const auto spec = specs_.find(entry.name);
    if (spec == specs_.end()) {
      return invalid_argument("load: {}: expected a tensor of this layer (ratio {}, layer {}), got an unknown name",
                              entry.name, config_.compress_ratio, config_.layer_id);
    }
    const Spec& s = spec->second;
    Validator v("load", -1);
    if (s.shape.size() == 1) {
      v.tensor(entry.name, entry.tensor, {s.dtype}, {s.shape[0]}, 0);
    } else {
      v.tensor(entry.name, entry.tensor, {s.dtype}, {s.shape[0], s.shape[1]}, 0);
    }
    MEGAMLA_RETURN_IF_ERROR(v.status());
    if (!given->emplace(entry.name, entry.tensor).second)
      return invalid_argument("load: {}: expected once, got twice", entry.name);
  }
  for (const auto& [name, tensor] : *given) {
    const std::string& partner = specs_.at(name).partner;
    if (!partner.empty() && !given->contains(partner)) {
      return invalid_argument("load: {}: expected together with {}, got it alone", name, partner);
    }
  }
  return {};
}

Status WeightLoader::load(std::span<const megamla_named_tensor> tensors) {
  Given given;
  MEGAMLA_RETURN_IF_ERROR(check(tensors, &given));
  MEGAMLA_RETURN_IF_ERROR(take_concatenated(given));
  MEGAMLA_RETURN_IF_ERROR(take_wq_b(given));
  MEGAMLA_RETURN_IF_ERROR(take_wo_a(given));
  MEGAMLA_RETURN_IF_ERROR(take_wo_b(given));
  MEGAMLA_RETURN_IF_ERROR(take_plain(given));
  for (const auto& [name, tensor] : given) specs_.at(name).loaded = true;
  return {};
}

Status WeightLoader::check_complete() const {
  for (const auto& [name, spec] : specs_) {
    if (!spec.loaded) return invalid_argument("load: {}: expected before the first step, got nothing", name);
  }
  return {};
}

// Weights whose outputs come from one GEMM lie behind each other: wq_a then wkv, compressor.wkv then compressor.wgate.
Status WeightLoader::take_concatenated(const Given& given) {
  const int64_t hidden = config_.hidden_size;
  const int64_t q_lora = config_.q_lora_rank;
  const int64_t head_dim = config_.head_dim;
  const auto place = [&](const char* name, Buffer& buffer, int64_t row, megamla_dtype dtype, int64_t rows,
                         int64_t columns) -> Status {
    const auto it = given.find(name);
    if (it == given.end()) return {};
    if (buffer.bytes() == 0) MEGAMLA_RETURN_IF_ERROR(buffer.allocate(cuda_device_, dtype, {rows, columns}));
    return buffer.write(row * columns * megamla_dtype_size(dtype), it->second.data, bytes_of(it->second));
  };
  const int64_t rows = q_lora + head_dim;
  Weights& w = weights_;
  MEGAMLA_RETURN_IF_ERROR(place("wq_a.weight", w.wqa_wkv, 0, MEGAMLA_F8_E4M3, rows, hidden));
  MEGAMLA_RETURN_IF_ERROR(place("wkv.weight", w.wqa_wkv, q_lora, MEGAMLA_F8_E4M3, rows, hidden));
  MEGAMLA_RETURN_IF_ERROR(place("wq_a.scale", w.wqa_wkv_scale, 0, MEGAMLA_F8_E8M0, rows / kBlock, hidden / kBlock));
  MEGAMLA_RETURN_IF_ERROR(
      place("wkv.scale", w.wqa_wkv_scale, q_lora / kBlock, MEGAMLA_F8_E8M0, rows / kBlock, hidden / kBlock));
  const int64_t compressed = (config_.compress_ratio == 2 ? 2 : 1) * head_dim;
  MEGAMLA_RETURN_IF_ERROR(place("compressor.wkv.weight", w.compressor, 0, MEGAMLA_BF16, compressed, hidden));
  return place("compressor.wgate.weight", w.compressor, head_dim, MEGAMLA_BF16, compressed, hidden);
}

Status WeightLoader::take_permuted(megamla_permute_kind kind, const megamla_tensor& in, const megamla_tensor& in_scale,
                                   Buffer& out, Buffer& out_scale) const {
  Staging weight(out);
  Staging scale(out_scale);
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = kind;
  p.in = in;
  p.in_scale = in_scale;
  p.out = weight.view();
  p.out_scale = scale.view();
  MEGAMLA_RETURN_IF_ERROR(call(megamla_permute_weights(&p, nullptr)));
  MEGAMLA_RETURN_IF_ERROR(weight.finish());
  return scale.finish();
}

Status WeightLoader::take_wq_b(const Given& given) {
  const auto weight = given.find("wq_b.weight");
  if (weight == given.end()) return {};
  const int64_t rows = heads_ * config_.head_dim;
  const int64_t begin = config_.tp_rank * rows;
  Weights& w = weights_;
  MEGAMLA_RETURN_IF_ERROR(w.wq_b.allocate(cuda_device_, MEGAMLA_F8_E4M3, {rows, config_.q_lora_rank}));
  MEGAMLA_RETURN_IF_ERROR(w.wq_b_scale.allocate(cuda_device_, MEGAMLA_F8_E8M0, {rows, config_.q_lora_rank / kBlock}));
  return take_permuted(MEGAMLA_PERMUTE_WQ_B, rows_of(weight->second, begin, rows),
                       rows_of(given.at("wq_b.scale"), begin / kBlock, rows / kBlock), w.wq_b, w.wq_b_scale);
}

Status WeightLoader::take_wo_a(const Given& given) {
  const auto weight = given.find("wo_a.weight");
  if (weight == given.end()) return {};
  const int64_t width = 8 * config_.head_dim;
  const int64_t rows = groups_ * config_.o_lora_rank;
  const int64_t begin = config_.tp_rank * rows;
  Weights& w = weights_;
  MEGAMLA_RETURN_IF_ERROR(w.wo_a.allocate(cuda_device_, MEGAMLA_F8_E4M3, {groups_, config_.o_lora_rank, width}));
  MEGAMLA_RETURN_IF_ERROR(
      w.wo_a_scale.allocate(cuda_device_, MEGAMLA_F8_E8M0, {groups_, config_.o_lora_rank, width / kBlock}));
  return take_permuted(MEGAMLA_PERMUTE_WO_A, rows_of(weight->second, begin, rows),
                       rows_of(given.at("wo_a.scale"), begin / kBlock, rows / kBlock), w.wo_a, w.wo_a_scale);
}

// Columns begin .. begin+columns-1 of a contiguous [rows, all] tensor of bytes.
Status WeightLoader::take_columns(const megamla_tensor& from, int64_t begin, int64_t columns, Buffer& out) const {
  MEGAMLA_RETURN_IF_ERROR(out.allocate(cuda_device_, static_cast<megamla_dtype>(from.dtype), {from.shape[0], columns}));
  Staging staging(out);
  for (int64_t row = 0; row < from.shape[0]; ++row) {
    std::memcpy(data<char>(staging.view()) + row * columns, data<const char>(from) + row * from.shape[1] + begin,
                static_cast<size_t>(columns));
  }
  return staging.finish();
}

Status WeightLoader::take_wo_b(const Given& given) {
  const auto weight = given.find("wo_b.weight");
  if (weight == given.end()) return {};
  const int64_t columns = groups_ * config_.o_lora_rank;
  const int64_t begin = config_.tp_rank * columns;
  MEGAMLA_RETURN_IF_ERROR(take_columns(weight->second, begin, columns, weights_.wo_b));
  return take_columns(given.at("wo_b.scale"), begin / kBlock, columns / kBlock, weights_.wo_b_scale);
}

Status WeightLoader::take_plain(const Given& given) {
  const auto place = [&](const char* name, Buffer& buffer, megamla_dtype dtype, int64_t begin,
                         int64_t count) -> Status {
    const auto it = given.find(name);
    if (it == given.end()) return {};
    MEGAMLA_RETURN_IF_ERROR(buffer.allocate(cuda_device_, dtype, {count}));
    return buffer.write(0, rows_of(it->second, begin, count).data, buffer.bytes());
  };
  Weights& w = weights_;
  MEGAMLA_RETURN_IF_ERROR(place("q_norm.weight", w.q_norm, MEGAMLA_BF16, 0, config_.q_lora_rank));
  MEGAMLA_RETURN_IF_ERROR(place("kv_norm.weight", w.kv_norm, MEGAMLA_BF16, 0, config_.head_dim));
  MEGAMLA_RETURN_IF_ERROR(place("compressor.norm.weight", w.compressor_norm, MEGAMLA_BF16, 0, config_.head_dim));
  return place("attn_sink", w.attn_sink, MEGAMLA_F32, config_.tp_rank * heads_, heads_);
}

}  // namespace megamla::layer
