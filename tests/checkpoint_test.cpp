// Checkpoint folders: what is read of them, and the message of everything that can be wrong with one.
#include "io/checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/seeded_weights.hpp"
#include "support/temp_folder.hpp"

namespace megamla {
namespace {

using io::Checkpoint;
using io::ModelConfig;
using io::SafetensorsWriter;
using io::TensorSpec;
using test::TempFolder;

constexpr const char* kIndex = "model.safetensors.index.json";

// The model's shape with widths that make small files: layers 0 (ratio 0), 1 (ratio 2, source), 2 (ratio 1, source), 3
// (ratio 1, consumer), draft layer 4.
ModelConfig small_model() {
  ModelConfig c;
  c.hidden_size = 64;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 8;
  c.o_groups = 1;
  c.q_lora_rank = 64;
  c.o_lora_rank = 32;
  c.compress_ratios = {0, 2, 1, 1, 0};
  c.kv_source_layer_ids = {1, 2};
  c.index_source_layer_ids = {1, 2};
  return c;
}

// One layer's tensors in a file, each declaration changed at will.
using Change = std::function<void(std::vector<SafetensorsWriter::Declaration>&)>;
void write_shard(const std::string& path, int64_t layer, const Change& change = nullptr) {
  const ModelConfig model = small_model();
  std::vector<SafetensorsWriter::Declaration> declarations;
  for (const TensorSpec& spec : io::layer_tensors(model, layer)) {
    declarations.push_back({io::tensor_prefix(model, layer) + spec.name, spec.dtype, spec.shape});
  }
  if (change) change(declarations);
  auto writer = SafetensorsWriter::create(path, declarations);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const auto& d : declarations) {
    int64_t bytes = megamla_dtype_size(d.dtype);
    for (const int64_t extent : d.shape) bytes *= extent;
    const std::vector<char> zeros(static_cast<size_t>(bytes));
    ASSERT_TRUE(writer.value().write(zeros.data(), bytes).ok());
  }
  ASSERT_TRUE(writer.value().finish().ok());
}

std::string layer_refusal(const TempFolder& folder, int64_t layer) {
  const auto checkpoint = Checkpoint::open(folder.path());
  if (!checkpoint.ok()) return checkpoint.status().message();
  const auto tensors = checkpoint.value().layer(layer);
  return tensors.ok() ? "loaded" : tensors.status().message();
}

TEST(Checkpoint, SeededRoundTrip) {
  const TempFolder folder;
  const ModelConfig model = small_model();
  const std::string path = folder.file("a/b");
  ASSERT_TRUE(io::write_seeded_checkpoint(model, {1, 4}, 7, path).ok());
  ASSERT_TRUE(io::write_seeded_checkpoint(model, {3}, 8, path).ok());  // a layer more
  ASSERT_TRUE(io::write_seeded_checkpoint(model, {4}, 9, path).ok());  // a layer again
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(io::model_config_text(checkpoint.value().config()), io::model_config_text(model));
  const std::map<int64_t, uint64_t> seeds = {{1, 7}, {3, 8}, {4, 9}};
  for (const auto& [layer, seed] : seeds) {
    SCOPED_TRACE(layer);
    auto loaded = checkpoint.value().layer(layer);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const io::LayerTensors tensors = std::move(loaded.value());  // views outlive a move
    EXPECT_EQ(tensors.shards.size(), 1U);
    EXPECT_EQ(tensors.shards[0].metadata().at("seed"), std::to_string(seed));
    const std::vector<TensorSpec> specs = io::layer_tensors(model, layer);
    ASSERT_EQ(tensors.tensors.size(), specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(tensors.tensors[i].name, specs[i].name);
      std::vector<char> expected(static_cast<size_t>(specs[i].bytes()));
      io::fill_seeded(specs[i], io::tensor_prefix(model, layer) + specs[i].name, seed, expected.data());
      EXPECT_EQ(std::memcmp(tensors.tensors[i].view.data, expected.data(), expected.size()), 0) << specs[i].name;
    }
  }
  EXPECT_EQ(checkpoint.value().layer(2).status().message(),
            path + ": layers.2.attn.attn_sink: expected in the index, found nothing");
  EXPECT_EQ(checkpoint.value().layer(5).status().message(), path + ": layer: expected an id in [0, 4], found 5");
  EXPECT_EQ(checkpoint.value().layer(-1).status().message(), path + ": layer: expected an id in [0, 4], found -1");
}

TEST(Checkpoint, SingleFileWithoutIndex) {
  const TempFolder folder;
  ASSERT_TRUE(io::write_model_config(small_model(), folder.file("config.json")).ok());
  EXPECT_EQ(layer_refusal(folder, 1),
            folder.path() + ": expected model.safetensors.index.json or model.safetensors, found neither");
  write_shard(folder.file("model.safetensors"), 1);
  EXPECT_EQ(layer_refusal(folder, 1), "loaded");
  EXPECT_EQ(layer_refusal(folder, 2),
            folder.path() + ": layers.2.attn.attn_sink: expected in the index, found nothing");
}

// Other layers' shards need not be there: they are never opened.
TEST(Checkpoint, OpensOnlyTheLayersShards) {
  const TempFolder folder;
  ASSERT_TRUE(io::write_seeded_checkpoint(small_model(), {0, 1}, 1, folder.path()).ok());
  folder.write("layer-00.safetensors", "broken");
  EXPECT_EQ(layer_refusal(folder, 1), "loaded");
  const std::string shard = folder.file("layer-00.safetensors");
  EXPECT_EQ(layer_refusal(folder, 0), shard + ": header: expected at least 8 bytes, found 6");
  std::filesystem::remove(shard);
  EXPECT_EQ(layer_refusal(folder, 1), "loaded");
  EXPECT_EQ(layer_refusal(folder, 0), shard + ": cannot be opened: No such file or directory");
}

TEST(Checkpoint, TensorsOverSeveralShards) {
  const TempFolder folder;
  const ModelConfig model = small_model();
  ASSERT_TRUE(io::write_model_config(model, folder.file("config.json")).ok());
  write_shard(folder.file("one.safetensors"), 2, [](auto& d) { d.erase(d.begin() + 3, d.end()); });
  write_shard(folder.file("two.safetensors"), 2, [](auto& d) { d.erase(d.begin(), d.begin() + 3); });
  std::string map;
  size_t count = 0;
  for (const TensorSpec& spec : io::layer_tensors(model, 2)) {
    map += (count == 0 ? "\"" : ",\"") + io::tensor_prefix(model, 2) + spec.name + "\":\"" +
           (count < 3 ? "one" : "two") + ".safetensors\"";
    ++count;
  }
  folder.write(kIndex, "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}");
  EXPECT_EQ(layer_refusal(folder, 2), "loaded");
  write_shard(folder.file("two.safetensors"), 2, [](auto& d) { d.erase(d.begin(), d.begin() + 4); });
  EXPECT_EQ(layer_refusal(folder, 2),
            folder.file("two.safetensors") + ": layers.2.attn.q_norm.weight: expected a tensor, found nothing");
}

TEST(Checkpoint, RefusesWrongTensors) {
  struct Case {
    const char* what;
    Change change;
    const char* message;
  };
  const auto find = [](std::vector<SafetensorsWriter::Declaration>& d, const std::string& name) {
    return std::find_if(d.begin(), d.end(), [&](const auto& each) { return each.name == "layers.1.attn." + name; });
  };
  const Case cases[] = {
      {"fp32 scales", [&](auto& d) { find(d, "wq_b.scale")->dtype = MEGAMLA_F32; },
       "wq_b.scale: expected F8_E8M0 [128, 2], found F32 [128, 2]"},
      {"scales of another block",
       [&](auto& d) {
         find(d, "wkv.scale")->shape = {4, 1};
       },
       "wkv.scale: expected F8_E8M0 [16, 2], found F8_E8M0 [4, 1]"},
      {"bf16 weights", [&](auto& d) { find(d, "wq_a.weight")->dtype = MEGAMLA_BF16; },
       "wq_a.weight: expected F8_E4M3 [64, 64], found BF16 [64, 64]"},
      {"a transposed weight",
       [&](auto& d) { std::swap(find(d, "wo_a.weight")->shape[0], find(d, "wo_a.weight")->shape[1]); },
       "wo_a.weight: expected F8_E4M3 [32, 4096], found F8_E4M3 [4096, 32]"},
      {"another rank",
       [&](auto& d) {
         find(d, "kv_norm.weight")->shape = {512, 1};
       },
       "kv_norm.weight: expected BF16 [512], found BF16 [512, 1]"},
      {"heads of one rank", [&](auto& d) { find(d, "attn_sink")->shape = {4}; },
       "attn_sink: expected F32 [8], found F32 [4]"},
      {"a tensor missing", [&](auto& d) { d.erase(find(d, "compressor.wgate.weight")); },
       "compressor.wgate.weight: expected a tensor, found nothing"},
  };
  const TempFolder folder;
  ASSERT_TRUE(io::write_seeded_checkpoint(small_model(), {1}, 1, folder.path()).ok());
  const std::string shard = folder.file("layer-01.safetensors");
  for (const Case& c : cases) {
    write_shard(shard, 1, c.change);
    EXPECT_EQ(layer_refusal(folder, 1), shard + ": layers.1.attn." + c.message) << c.what;
  }
  write_shard(shard, 1);
  EXPECT_EQ(layer_refusal(folder, 1), "loaded");
}

TEST(Checkpoint, RefusesBrokenIndex) {
  const TempFolder folder;
  ASSERT_TRUE(io::write_seeded_checkpoint(small_model(), {1}, 1, folder.path()).ok());
  struct Case {
    std::string text;
    const char* message;
  };
  const auto entry = [](const std::string& file) { return "{\"weight_map\":{\"t\":" + file + "}}"; };
  const Case cases[] = {
      {"", "expected a JSON object, found ''"},
      {"[]", "expected a JSON object, found []"},
      {"{}", "weight_map: expected an object, found nothing"},
      {"{\"weight_map\":3}", "weight_map: expected an object, found 3"},
      {"{\"weight_map\":{\"t\":\"a\",\"t\":\"b\"}}", "t: expected once, found twice"},
      {entry("7"), "t: expected a file name, found 7"},
      {entry("\"\""), "t: expected a file name without folders, found ''"},
      {entry("\"..\""), "t: expected a file name without folders, found '..'"},
      {entry("\".\""), "t: expected a file name without folders, found '.'"},
      {entry("\"../x.safetensors\""), "t: expected a file name without folders, found '../x.safetensors'"},
      {entry("\"/etc/passwd\""), "t: expected a file name without folders, found '/etc/passwd'"},
      {entry("\"a/x.safetensors\""), "t: expected a file name without folders, found 'a/x.safetensors'"},
      {entry("\"x\\u0000y\""), "t: expected a file name without folders, found 'x\\x00y'"},
  };
  for (const Case& c : cases) {
    const std::string path = folder.write(kIndex, c.text);
    EXPECT_EQ(layer_refusal(folder, 1), path + ": " + c.message);
  }
}

TEST(Checkpoint, ReplacesNobodysFiles) {
  const TempFolder folder;
  const ModelConfig model = small_model();
  folder.write("notes.txt", "mine");
  EXPECT_EQ(io::write_seeded_checkpoint(model, {1}, 1, folder.path()).message(),
            folder.path() + ": expected an empty folder or a config.json in it, found neither");
  EXPECT_EQ(folder.entries(), 1);
  const std::string config = folder.write("config.json", R"({"text_config":{"hidden_size":64}})");
  EXPECT_EQ(io::write_seeded_checkpoint(model, {1}, 1, folder.path()).message(),
            config + ": expected the configuration of the layers to be written, found another; choose another folder");
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_EQ(io::write_seeded_checkpoint(model, {1}, 1, folder.file("notes.txt")).message(),
            folder.file("notes.txt") + ": expected a folder, found something else");
  EXPECT_EQ(io::write_seeded_checkpoint(model, {1, 5}, 1, folder.file("new")).message(),
            "layer: expected an id in [0, 4], got 5");
  EXPECT_FALSE(std::filesystem::exists(folder.file("new")));
  EXPECT_EQ(Checkpoint::open(folder.file("none")).status().message(),
            folder.file("none") + ": expected a checkpoint folder, found none");
}

}  // namespace
}  // namespace megamla
