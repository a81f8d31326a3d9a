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

void copy_all(const megamla_tensor& from, void* to) {
  int64_t bytes = megamla_dtype_size(static_cast<megamla_dtype>(from.dtype));
  for (int d = 0; d < from.ndim; ++d) bytes *= from.shape[d];
  if (bytes > 0) std::memcpy(to, from.data, static_cast<size_t>(bytes));
}

// Columns begin .. begin+columns-1 of a contiguous [rows, all] tensor of bytes.
void copy_columns(const megamla_tensor& from, int64_t begin, int64_t columns, char* to) {
  for (int64_t row = 0; row < from.shape[0]; ++row) {
    std::memcpy(to + row * columns, data<const char>(from) + row * from.shape[1] + begin, static_cast<size_t>(columns));
  }
}

}  // namespace

void Buffer::allocate(megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  int64_t bytes = megamla_dtype_size(dtype);
  for (const int64_t extent : shape) bytes *= extent;
  if (bytes != static_cast<int64_t>(storage_.size())) storage_ = std::vector<char>(static_cast<size_t>(bytes));
  view_ = host_tensor(storage_.data(), dtype, shape);
}

int64_t Weights::bytes() const {
  int64_t total = 0;
  for (const Buffer* b : {&wqa_wkv, &wqa_wkv_scale, &q_norm, &kv_norm, &wq_b, &wq_b_scale, &attn_sink, &wo_a,
                          &wo_a_scale, &wo_b, &wo_b_scale, &compressor, &compressor_norm}) {
    total += b->bytes();
  }
  return total;
}

WeightLoader::WeightLoader(const megamla_layer_config& config)
    : config_(config), heads_(config.num_heads / config.tp_size), groups_(config.o_groups / config.tp_size) {
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
  take_concatenated(given);
  MEGAMLA_RETURN_IF_ERROR(take_wq_b(given));
  MEGAMLA_RETURN_IF_ERROR(take_wo_a(given));
  take_wo_b(given);
  take_plain(given);
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
void WeightLoader::take_concatenated(const Given& given) {
  const int64_t hidden = config_.hidden_size;
  const int64_t q_lora = config_.q_lora_rank;
  const int64_t head_dim = config_.head_dim;
  const auto place = [&](const char* name, Buffer& buffer, int64_t row, megamla_dtype dtype, int64_t rows,
                         int64_t columns) {
    const auto it = given.find(name);
    if (it == given.end()) return;
    if (buffer.bytes() == 0) buffer.allocate(dtype, {rows, columns});
    copy_all(it->second, buffer.data() + row * columns * megamla_dtype_size(dtype));
  };
  const int64_t rows = q_lora + head_dim;
  place("wq_a.weight", weights_.wqa_wkv, 0, MEGAMLA_F8_E4M3, rows, hidden);
  place("wkv.weight", weights_.wqa_wkv, q_lora, MEGAMLA_F8_E4M3, rows, hidden);
  place("wq_a.scale", weights_.wqa_wkv_scale, 0, MEGAMLA_F8_E8M0, rows / kBlock, hidden / kBlock);
  place("wkv.scale", weights_.wqa_wkv_scale, q_lora / kBlock, MEGAMLA_F8_E8M0, rows / kBlock, hidden / kBlock);
  const int64_t parts = config_.compress_ratio == 2 ? 2 : 1;
  place("compressor.wkv.weight", weights_.compressor, 0, MEGAMLA_BF16, parts * head_dim, hidden);
  place("compressor.wgate.weight", weights_.compressor, head_dim, MEGAMLA_BF16, parts * head_dim, hidden);
}

Status WeightLoader::take_wq_b(const Given& given) {
  const auto weight = given.find("wq_b.weight");
  if (weight == given.end()) return {};
  const int64_t rows = heads_ * config_.head_dim;
  weights_.wq_b.allocate(MEGAMLA_F8_E4M3, {rows, config_.q_lora_rank});
  weights_.wq_b_scale.allocate(MEGAMLA_F8_E8M0, {rows, config_.q_lora_rank / kBlock});
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = MEGAMLA_PERMUTE_WQ_B;
  p.in = rows_of(weight->second, config_.tp_rank * rows, rows);
  p.in_scale = rows_of(given.at("wq_b.scale"), config_.tp_rank * rows / kBlock, rows / kBlock);
  p.out = weights_.wq_b.view();
  p.out_scale = weights_.wq_b_scale.view();
  return call(megamla_permute_weights(&p, nullptr));
}

Status WeightLoader::take_wo_a(const Given& given) {
  const auto weight = given.find("wo_a.weight");
  if (weight == given.end()) return {};
  const int64_t width = 8 * config_.head_dim;
  const int64_t rows = groups_ * config_.o_lora_rank;
  weights_.wo_a.allocate(MEGAMLA_F8_E4M3, {groups_, config_.o_lora_rank, width});
  weights_.wo_a_scale.allocate(MEGAMLA_F8_E8M0, {groups_, config_.o_lora_rank, width / kBlock});
  megamla_permute_weights_params p;
  megamla_permute_weights_init(&p);
  p.kind = MEGAMLA_PERMUTE_WO_A;
  p.in = rows_of(weight->second, config_.tp_rank * rows, rows);
  p.in_scale = rows_of(given.at("wo_a.scale"), config_.tp_rank * rows / kBlock, rows / kBlock);
  p.out = weights_.wo_a.view();
  p.out_scale = weights_.wo_a_scale.view();
  return call(megamla_permute_weights(&p, nullptr));
}

void WeightLoader::take_wo_b(const Given& given) {
  const auto weight = given.find("wo_b.weight");
  if (weight == given.end()) return;
  const int64_t columns = groups_ * config_.o_lora_rank;
  weights_.wo_b.allocate(MEGAMLA_F8_E4M3, {config_.hidden_size, columns});
  weights_.wo_b_scale.allocate(MEGAMLA_F8_E8M0, {config_.hidden_size / kBlock, columns / kBlock});
  copy_columns(weight->second, config_.tp_rank * columns, columns, weights_.wo_b.data());
  copy_columns(given.at("wo_b.scale"), config_.tp_rank * columns / kBlock, columns / kBlock,
               weights_.wo_b_scale.data());
}

void WeightLoader::take_plain(const Given& given) {
  const auto place = [&](const char* name, Buffer& buffer, megamla_dtype dtype, int64_t begin, int64_t count) {
    const auto it = given.find(name);
    if (it == given.end()) return;
    buffer.allocate(dtype, {count});
    copy_all(rows_of(it->second, begin, count), buffer.data());
  };
  place("q_norm.weight", weights_.q_norm, MEGAMLA_BF16, 0, config_.q_lora_rank);
  place("kv_norm.weight", weights_.kv_norm, MEGAMLA_BF16, 0, config_.head_dim);
  place("compressor.norm.weight", weights_.compressor_norm, MEGAMLA_BF16, 0, config_.head_dim);
  place("attn_sink", weights_.attn_sink, MEGAMLA_F32, config_.tp_rank * heads_, heads_);
}

}  // namespace megamla::layer
