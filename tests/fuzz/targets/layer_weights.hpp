// Weights for a small layer of the fuzzer.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "format/bf16.hpp"
#include "megamla/layer.h"

namespace megamla::fuzz {

// Weights of a few units, from a seed.
class LayerWeights {
 public:
  explicit LayerWeights(const megamla_layer_config& c) {
    pair("wq_a", c.q_lora_rank, c.hidden_size);
    pair("wkv", 512, c.hidden_size);
    pair("wq_b", c.num_heads * 512, c.q_lora_rank);
    pair("wo_a", c.o_lora_rank, 4096);
    pair("wo_b", c.hidden_size, c.o_lora_rank);
    vector("q_norm.weight", MEGAMLA_BF16, {c.q_lora_rank});
    vector("kv_norm.weight", MEGAMLA_BF16, {512});
    vector("attn_sink", MEGAMLA_F32, {c.num_heads});
    if (c.compress_ratio == 0 || c.kv_source_layer != c.layer_id) return;
    vector("compressor.wkv.weight", MEGAMLA_BF16, {512, c.hidden_size});
    if (c.compress_ratio == 2) vector("compressor.wgate.weight", MEGAMLA_BF16, {512, c.hidden_size});
    vector("compressor.norm.weight", MEGAMLA_BF16, {512});
  }
  const std::vector<megamla_named_tensor>& tensors() const { return tensors_; }

 private:
  void add(const char* name, megamla_dtype dtype, std::initializer_list<int64_t> shape, std::vector<uint8_t> bytes) {
    names_.push_back(std::make_unique<std::string>(name));
    bytes_.push_back(std::make_unique<std::vector<uint8_t>>(std::move(bytes)));
    tensors_.push_back({names_.back()->c_str(), host_tensor(bytes_.back()->data(), dtype, shape)});
  }
  void pair(const std::string& name, int64_t rows, int64_t columns) {
    std::vector<uint8_t> codes(static_cast<size_t>(rows * columns));
    for (uint8_t& code : codes) code = static_cast<uint8_t>((random_() & 0x80) | (0x20 + random_() % 0x20));
    add((name + ".weight").c_str(), MEGAMLA_F8_E4M3, {rows, columns}, std::move(codes));
    // Sums of `columns` products stay about as large as the factors.
    const auto exponent = static_cast<uint8_t>(columns > 1000 ? 122 : columns > 100 ? 124 : 126);
    add((name + ".scale").c_str(), MEGAMLA_F8_E8M0, {rows / 32, columns / 32},
        std::vector<uint8_t>(static_cast<size_t>(rows / 32 * (columns / 32)), exponent));
  }
  void vector(const char* name, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random_() % 64) / 32 - 1;
      uint8_t element[4];
      const format::Bf16 rounded = format::to_bf16(value);
      if (dtype == MEGAMLA_F32) {
        std::memcpy(element, &value, 4);
      } else {
        std::memcpy(element, &rounded, 2);
      }
      bytes.insert(bytes.end(), element, element + megamla_dtype_size(dtype));
    }
    add(name, dtype, shape, std::move(bytes));
  }

  std::minstd_rand random_{7};
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> bytes_;
  std::vector<megamla_named_tensor> tensors_;
};

}  // namespace megamla::fuzz
