#include "io/seeded_weights.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "format/bf16.hpp"

namespace megamla::io {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15U;

uint64_t fnv1a64(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  return hash;
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

class Words {
 public:
  Words(const std::string& name, uint64_t seed) : key_(mix(fnv1a64(name) + seed * kGamma)) {}
  uint64_t word(int64_t i) const { return mix(key_ + (static_cast<uint64_t>(i) + 1) * kGamma); }

 private:
  uint64_t key_;
};

// 128 half-normal magnitudes (sigma 150, up to 448), ascending; hex pairs.
constexpr char kMagnitudes[] =
    "0005474a4d50525354565758595a5b5b5c5d5e5e5f6060616161626263636364"
    "6465656566666667676868686869696969696a6a6a6a6b6b6b6b6b6c6c6c6c6d"
    "6d6d6d6d6e6e6e6e6f6f6f6f7070707070717171717171717272727272727373"
    "7373737374747474747575757576767677777778787878797979797a7a7b7c7e";

constexpr uint8_t hex_digit(char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

constexpr std::array<uint8_t, 256> e4m3_codes() {
  std::array<uint8_t, 256> codes{};
  for (size_t b = 0; b < codes.size(); ++b) {
    const size_t i = b & 127U;
    const auto magnitude = static_cast<uint8_t>(hex_digit(kMagnitudes[2 * i]) * 16 + hex_digit(kMagnitudes[2 * i + 1]));
    codes[b] = static_cast<uint8_t>(magnitude | (b & 128U));
  }
  return codes;
}

// Calls element(j, byte j) for every j < count.
template <class Element>
void for_each_byte(const Words& words, int64_t count, Element&& element) {
  for (int64_t i = 0; i * 8 < count; ++i) {
    uint64_t word = words.word(i);
    for (int64_t j = i * 8; j < std::min(count, i * 8 + 8); ++j, word >>= 8) element(j, static_cast<uint8_t>(word));
  }
}

void fill_sum(const Words& words, int64_t count, int k, format::Bf16* out) {
  const float factor = std::ldexp(1.0F, -k);
  for (int64_t j = 0; j < count; ++j) {
    const auto four = static_cast<uint32_t>(words.word(j / 2) >> (j % 2 * 32));
    const int sum = static_cast<int>((four & 255U) + (four >> 8 & 255U) + (four >> 16 & 255U) + (four >> 24)) - 510;
    out[j] = format::to_bf16(static_cast<float>(sum) * factor);
  }
}

void fill_sink(const Words& words, int64_t count, float* out) {
  for (int64_t j = 0; j < count; ++j) {
    uint64_t word = words.word(j);
    int sum = -1020;
    for (int b = 0; b < 8; ++b, word >>= 8) sum += static_cast<int>(word & 255U);
    out[j] = static_cast<float>(sum * 5) / 1024.0F;
  }
  const auto without = static_cast<int64_t>(words.word(count) % static_cast<uint64_t>(count));
  out[without] = -std::numeric_limits<float>::infinity();
}

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<TensorSpec> layer_tensors(const ModelConfig& c, int64_t layer) {
  std::vector<TensorSpec> specs;
  const auto fp8 = [&](const std::string& name, int64_t rows, int64_t columns, int base) {
    specs.push_back({name + ".weight", MEGAMLA_F8_E4M3, {rows, columns}, SeededKind::kE4m3, 0});
    specs.push_back(
        {name + ".scale", MEGAMLA_F8_E8M0, {(rows + 31) / 32, (columns + 31) / 32}, SeededKind::kScale, base});
  };
  const auto norm = [&](const std::string& name, int64_t width) {
    specs.push_back({name, MEGAMLA_BF16, {width}, SeededKind::kNorm, 0});
  };
  specs.push_back({"attn_sink", MEGAMLA_F32, {c.num_attention_heads}, SeededKind::kSink, 0});
  fp8("wq_a", c.q_lora_rank, c.hidden_size, 113);
  norm("q_norm.weight", c.q_lora_rank);
  fp8("wq_b", c.num_attention_heads * c.head_dim, c.q_lora_rank, 115);
  fp8("wkv", c.head_dim, c.hidden_size, 114);
  norm("kv_norm.weight", c.head_dim);
  fp8("wo_a", c.o_groups * c.o_lora_rank, c.num_attention_heads / c.o_groups * c.head_dim, 115);
  fp8("wo_b", c.hidden_size, c.o_groups * c.o_lora_rank, 113);
  const int64_t ratio = c.compress_ratio(layer);
  if (ratio > 0 && c.kv_source_of(layer) == layer) {
    specs.push_back({"compressor.wkv.weight", MEGAMLA_BF16, {c.head_dim, c.hidden_size}, SeededKind::kSum, 13});
    if (ratio == 2)
      specs.push_back({"compressor.wgate.weight", MEGAMLA_BF16, {c.head_dim, c.hidden_size}, SeededKind::kSum, 13});
    norm("compressor.norm.weight", c.head_dim);
  }
  return specs;
}

std::string tensor_prefix(const ModelConfig& c, int64_t layer) {
  if (layer >= c.num_hidden_layers) return fmt::format("mtp.{}.attn.", layer - c.num_hidden_layers);
  return fmt::format("layers.{}.attn.", layer);
}

void fill_seeded(const TensorSpec& spec, const std::string& full_name, uint64_t seed, void* out) {
  static constexpr std::array<uint8_t, 256> kCodes = e4m3_codes();
  static constexpr int kSteps[8] = {-2, -1, -1, 0, 0, 0, 1, 1};
  const Words words(full_name, seed);
  const int64_t count = spec.elements();
  auto* bytes = static_cast<uint8_t*>(out);
  auto* bf16 = static_cast<format::Bf16*>(out);
  switch (spec.kind) {
    case SeededKind::kE4m3:
      return for_each_byte(words, count, [&](int64_t j, uint8_t b) { bytes[j] = kCodes[b]; });
    case SeededKind::kScale:
      return for_each_byte(words, count, [&](int64_t j, uint8_t b) {
        bytes[j] = static_cast<uint8_t>(spec.parameter + kSteps[b & 7U]);
      });
    case SeededKind::kNorm:
      return for_each_byte(words, count, [&](int64_t j, uint8_t b) {
        bf16[j] = format::to_bf16(static_cast<float>(96 + (b & 63)) / 128.0F);
      });
    case SeededKind::kSum:
      return fill_sum(words, count, spec.parameter, bf16);
    case SeededKind::kSink:
      return fill_sink(words, count, static_cast<float*>(out));
  }
}

void fill_hidden_states(uint64_t seed, int64_t rows, int64_t width, void* out) {
  fill_sum(Words("hidden", seed), rows * width, 7, static_cast<format::Bf16*>(out));
}

}  // namespace megamla::io
