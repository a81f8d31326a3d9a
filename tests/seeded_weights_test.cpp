// Seeded weights against the published values: any element of any tensor, the same on every machine.
#include "io/seeded_weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "io/model_config.hpp"

namespace megamla {
namespace {

using io::ModelConfig;
using io::TensorSpec;

constexpr uint64_t kSeed = 4101;

std::vector<uint8_t> made(const TensorSpec& spec, const std::string& name, uint64_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(spec.bytes()), 0xee);
  io::fill_seeded(spec, name, seed, bytes.data());
  return bytes;
}

// Elements as codes: the byte, or the bits of a bf16.
uint64_t code_at(const std::vector<uint8_t>& bytes, int64_t size, size_t j) {
  if (size == 1) return bytes[j];
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + 2 * j, sizeof(bits));
  return bits;
}

struct Published {
  const char* name;
  std::vector<int64_t> shape;
  megamla_dtype dtype;
  uint64_t first[4];
  uint64_t last;
  uint64_t sum;
};

// Layer 2, seed 4101.
const Published kPublished[] = {
    {"wq_a.weight", {1280, 5120}, MEGAMLA_F8_E4M3, {0xeb, 0x6c, 0x6e, 0x64}, 0x72, 1108733539},
    {"wq_a.scale", {40, 160}, MEGAMLA_F8_E8M0, {0x71, 0x72, 0x71, 0x6f}, 0x72, 721648},
    {"q_norm.weight", {1280}, MEGAMLA_BF16, {0x3f6a, 0x3f8a, 0x3f9e, 0x3f90}, 0x3f54, 20796271},
    {"wq_b.weight", {32768, 1280}, MEGAMLA_F8_E4M3, {0xef, 0xeb, 0xed, 0xf3}, 0xed, 7096682694},
    {"wq_b.scale", {1024, 40}, MEGAMLA_F8_E8M0, {0x74, 0x73, 0x71, 0x73}, 0x73, 4700234},
    {"wkv.weight", {512, 5120}, MEGAMLA_F8_E4M3, {0x7e, 0x71, 0x57, 0xf2}, 0xf9, 443403608},
    {"wkv.scale", {16, 160}, MEGAMLA_F8_E8M0, {0x71, 0x72, 0x72, 0x71}, 0x73, 291166},
    {"kv_norm.weight", {512}, MEGAMLA_BF16, {0x3f98, 0x3f42, 0x3f83, 0x3f5c}, 0x3f74, 8318526},
    {"wo_a.weight", {8192, 4096}, MEGAMLA_F8_E4M3, {0x7c, 0xf2, 0xd6, 0x6e}, 0x56, 5676666884},
    {"wo_a.scale", {256, 128}, MEGAMLA_F8_E8M0, {0x72, 0x72, 0x72, 0x73}, 0x74, 3760113},
    {"wo_b.weight", {5120, 8192}, MEGAMLA_F8_E4M3, {0xf4, 0xeb, 0x71, 0x72}, 0xf6, 7096030561},
    {"wo_b.scale", {160, 256}, MEGAMLA_F8_E8M0, {0x70, 0x72, 0x70, 0x72}, 0x71, 4618345},
    {"compressor.wkv.weight", {512, 5120}, MEGAMLA_BF16, {0xbc85, 0xbbc4, 0xbc58, 0xbd04}, 0xbce8, 83081024228},
    {"compressor.wgate.weight", {512, 5120}, MEGAMLA_BF16, {0xbbd0, 0x3cdf, 0xbc48, 0xbc83}, 0xbb40, 83076718860},
    {"compressor.norm.weight", {512}, MEGAMLA_BF16, {0x3f46, 0x3f54, 0x3f6a, 0x3f86}, 0x3f40, 8317553},
};

TEST(SeededWeights, PublishedValues) {
  const ModelConfig model = io::deepseek_v41_flash();
  const std::vector<TensorSpec> specs = io::layer_tensors(model, 2);
  ASSERT_EQ(specs.size(), std::size(kPublished) + 1);  // and the sinks, below
  std::map<std::string, TensorSpec> by_name;
  for (const TensorSpec& spec : specs) by_name.emplace(spec.name, spec);
  for (const Published& p : kPublished) {
    SCOPED_TRACE(p.name);
    ASSERT_TRUE(by_name.contains(p.name));
    const TensorSpec& spec = by_name.at(p.name);
    EXPECT_EQ(spec.shape, p.shape);
    EXPECT_EQ(spec.dtype, p.dtype);
    const std::vector<uint8_t> bytes = made(spec, io::tensor_prefix(model, 2) + p.name, kSeed);
    const int64_t size = megamla_dtype_size(spec.dtype);
    for (size_t j = 0; j < 4; ++j) EXPECT_EQ(code_at(bytes, size, j), p.first[j]) << "element " << j;
    const auto count = static_cast<size_t>(spec.elements());
    EXPECT_EQ(code_at(bytes, size, count - 1), p.last);
    uint64_t sum = 0;
    for (size_t j = 0; j < count; ++j) sum += code_at(bytes, size, j);
    EXPECT_EQ(sum, p.sum);
  }
}

TEST(SeededWeights, PublishedSinks) {
  const ModelConfig model = io::deepseek_v41_flash();
  const TensorSpec spec = io::layer_tensors(model, 2)[0];
  ASSERT_EQ(spec.name, "attn_sink");
  ASSERT_EQ(spec.dtype, MEGAMLA_F32);
  ASSERT_EQ(spec.shape, std::vector<int64_t>{64});
  float sinks[64];
  io::fill_seeded(spec, "layers.2.attn.attn_sink", kSeed, sinks);
  const float first[4] = {-0.68359375F, 0.4638671875F, -0.2197265625F, -0.5224609375F};
  for (int h = 0; h < 4; ++h) EXPECT_EQ(sinks[h], first[h]) << "head " << h;
  EXPECT_EQ(sinks[63], 1.1572265625F);
  double sum = 0;
  for (int h = 0; h < 64; ++h) {
    EXPECT_EQ(std::isinf(sinks[h]), h == 27) << "head " << h;
    if (h != 27) sum += sinks[h];
  }
  EXPECT_LT(sinks[27], 0);
  EXPECT_EQ(sum, 8.4619140625);
}

TEST(SeededWeights, PublishedHiddenStates) {
  std::vector<uint8_t> bytes(48 * 5120 * 2);
  io::fill_hidden_states(4102, 48, 5120, bytes.data());
  const uint64_t first[4] = {0xbf4a, 0xbfcc, 0xbeb8, 0x3fd1};
  for (size_t j = 0; j < 4; ++j) EXPECT_EQ(code_at(bytes, 2, j), first[j]) << "element " << j;
  EXPECT_EQ(code_at(bytes, 2, 48 * 5120 - 1), 0xbf66U);
  uint64_t sum = 0;
  for (size_t j = 0; j < 48 * 5120; ++j) sum += code_at(bytes, 2, j);
  EXPECT_EQ(sum, 7986669799U);
}

// A tensor cut short at any element is the beginning of the whole one: nothing depends on the count, nothing is written
// beyond it.
TEST(SeededWeights, PrefixesAgree) {
  using io::SeededKind;
  struct Kind {
    SeededKind kind;
    megamla_dtype dtype;
    int parameter;
  };
  for (const Kind& kind : {Kind{SeededKind::kE4m3, MEGAMLA_F8_E4M3, 0}, Kind{SeededKind::kScale, MEGAMLA_F8_E8M0, 113},
                           Kind{SeededKind::kNorm, MEGAMLA_BF16, 0}, Kind{SeededKind::kSum, MEGAMLA_BF16, 13}}) {
    const TensorSpec whole_spec{"t", kind.dtype, {41}, kind.kind, kind.parameter};
    const std::vector<uint8_t> whole = made(whole_spec, "layers.0.attn.t", 9);
    for (int64_t count = 0; count < 41; ++count) {
      const TensorSpec spec{"t", kind.dtype, {count}, kind.kind, kind.parameter};
      std::vector<uint8_t> bytes(whole.size() + 8, 0xee);
      io::fill_seeded(spec, "layers.0.attn.t", 9, bytes.data());
      const auto used = static_cast<size_t>(spec.bytes());
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(used), whole.begin())) << count;
      for (size_t i = used; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xee) << count << ", byte " << i;
    }
  }
}

TEST(SeededWeights, NameAndSeedChangeEverything) {
  const TensorSpec spec{"t", MEGAMLA_F8_E4M3, {4096}, io::SeededKind::kE4m3, 0};
  const std::vector<uint8_t> all[] = {made(spec, "layers.2.attn.t", 1), made(spec, "layers.2.attn.t", 2),
                                      made(spec, "layers.3.attn.t", 1), made(spec, "layers.2.attn.u", 1)};
  for (const auto& bytes : all) {
    EXPECT_EQ(std::count(std::begin(all), std::end(all), bytes), 1);
    for (const uint8_t code : bytes) ASSERT_NE(code & 0x7f, 0x7f);  // no NaN
  }
}

// Which tensors a layer has (contract section 15).
TEST(LayerTensors, ByRole) {
  const ModelConfig model = io::deepseek_v41_flash();
  const auto names = [&](int64_t layer) {
    std::set<std::string> result;
    for (const TensorSpec& spec : io::layer_tensors(model, layer)) result.insert(spec.name);
    return result;
  };
  const std::set<std::string> always = {"attn_sink",  "wq_a.weight", "wq_a.scale", "q_norm.weight",  "wq_b.weight",
                                        "wq_b.scale", "wkv.weight",  "wkv.scale",  "kv_norm.weight", "wo_a.weight",
                                        "wo_a.scale", "wo_b.weight", "wo_b.scale"};
  std::set<std::string> ratio1 = always;
  ratio1.insert({"compressor.wkv.weight", "compressor.norm.weight"});
  std::set<std::string> ratio2 = ratio1;
  ratio2.insert("compressor.wgate.weight");
  for (int64_t layer = 0; layer < 43; ++layer) {
    const bool source2 = layer == 2 || layer == 8 || layer == 14;
    EXPECT_EQ(names(layer), source2 ? ratio2 : layer == 20 ? ratio1 : always) << "layer " << layer;
  }
  EXPECT_EQ(io::tensor_prefix(model, 39), "layers.39.attn.");
  EXPECT_EQ(io::tensor_prefix(model, 40), "mtp.0.attn.");
  EXPECT_EQ(io::tensor_prefix(model, 42), "mtp.2.attn.");
}

}  // namespace
}  // namespace megamla
