// config.json: the model's geometry read, checked and written.
#include "io/model_config.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temp_folder.hpp"

namespace megamla {
namespace {

using io::ModelConfig;
using nlohmann::json;
using test::TempFolder;

TEST(ModelConfig, DefaultsAreTheFlashModel) {
  const ModelConfig c = io::deepseek_v41_flash();
  EXPECT_TRUE(c.validate().ok()) << c.validate().message();
  EXPECT_EQ(c.compress_ratios.size(), 43U);
  for (int64_t layer = 0; layer < 43; ++layer) {
    EXPECT_EQ(c.compress_ratio(layer), layer < 2 || layer >= 40 ? 0 : layer < 20 ? 2 : 1) << layer;
  }
  EXPECT_EQ(c.compress_ratio(43), -1);
  EXPECT_EQ(c.compress_ratio(-1), -1);
  EXPECT_EQ(c.kv_source_of(1), -1);
  EXPECT_EQ(c.kv_source_of(2), 2);
  EXPECT_EQ(c.kv_source_of(7), 2);
  EXPECT_EQ(c.kv_source_of(19), 14);
  EXPECT_EQ(c.kv_source_of(39), 20);
  EXPECT_EQ(c.index_source_of(23), 20);
  EXPECT_EQ(c.index_source_of(24), 24);
  EXPECT_EQ(c.index_source_of(39), 36);
}

TEST(ModelConfig, RoundTripOfEveryField) {
  ModelConfig c;
  c.hidden_size = 7168;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.o_lora_rank = 512;
  c.o_groups = 16;
  c.sliding_window = 77;
  c.index_topk = 1024;
  c.rms_norm_eps = 1.0 / 3;
  c.compress_ratios = {0, 2, 1};
  c.kv_source_layer_ids = {1, 2};
  c.index_source_layer_ids = {1};
  c.rope_theta = 12345.6789;
  c.compress_rope_theta = 1e6;
  c.rope_factor = 4;
  c.original_max_position_embeddings = 4096;
  c.beta_fast = 31;
  c.beta_slow = 2;
  c.max_position_embeddings = 16384;
  const TempFolder folder;
  const std::string path = folder.file("config.json");
  ASSERT_TRUE(io::write_model_config(c, path).ok());
  EXPECT_EQ(folder.entries(), 1);
  const auto read = io::read_model_config(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const ModelConfig& r = read.value();
  EXPECT_EQ(r.hidden_size, c.hidden_size);
  EXPECT_EQ(r.num_hidden_layers, c.num_hidden_layers);
  EXPECT_EQ(r.num_attention_heads, c.num_attention_heads);
  EXPECT_EQ(r.head_dim, c.head_dim);
  EXPECT_EQ(r.qk_rope_head_dim, c.qk_rope_head_dim);
  EXPECT_EQ(r.q_lora_rank, c.q_lora_rank);
  EXPECT_EQ(r.o_lora_rank, c.o_lora_rank);
  EXPECT_EQ(r.o_groups, c.o_groups);
  EXPECT_EQ(r.sliding_window, c.sliding_window);
  EXPECT_EQ(r.index_topk, c.index_topk);
  EXPECT_EQ(r.rms_norm_eps, c.rms_norm_eps);
  EXPECT_EQ(r.compress_ratios, c.compress_ratios);
  EXPECT_EQ(r.kv_source_layer_ids, c.kv_source_layer_ids);
  EXPECT_EQ(r.index_source_layer_ids, c.index_source_layer_ids);
  EXPECT_EQ(r.rope_theta, c.rope_theta);
  EXPECT_EQ(r.compress_rope_theta, c.compress_rope_theta);
  EXPECT_EQ(r.rope_factor, c.rope_factor);
  EXPECT_EQ(r.original_max_position_embeddings, c.original_max_position_embeddings);
  EXPECT_EQ(r.beta_fast, c.beta_fast);
  EXPECT_EQ(r.beta_slow, c.beta_slow);
  EXPECT_EQ(r.max_position_embeddings, c.max_position_embeddings);
}

struct Case {
  const char* what;
  std::function<void(json& text)> spoil;
  const char* message;
};

const Case kCases[] = {
    {"missing", [](json& t) { t.erase("hidden_size"); }, "hidden_size: expected an integer, found nothing"},
    {"text", [](json& t) { t["hidden_size"] = "5120"; }, "hidden_size: expected an integer, found '5120'"},
    {"fraction", [](json& t) { t["o_groups"] = 8.5; }, "o_groups: expected an integer, found 8.5"},
    {"beyond 64 bits", [](json& t) { t["q_lora_rank"] = UINT64_MAX; },
     "q_lora_rank: expected an integer, found 18446744073709551615"},
    {"no number", [](json& t) { t["rope_theta"] = nullptr; }, "rope_theta: expected a number, found null"},
    {"no list", [](json& t) { t["compress_ratios"] = 2; }, "compress_ratios: expected a list of integers, found 2"},
    {"list of text", [](json& t) { t["kv_source_layer_ids"] = {"2"}; },
     "kv_source_layer_ids: expected a list of integers, found ['2']"},
    {"no scaling", [](json& t) { t.erase("rope_scaling"); }, "rope_scaling: expected an object, found nothing"},
    {"scaling null", [](json& t) { t["rope_scaling"] = nullptr; }, "rope_scaling: expected an object, found null"},
    {"other scaling", [](json& t) { t["rope_scaling"]["type"] = "linear"; },
     "rope_scaling.type: expected 'yarn', found 'linear'"},
    {"no factor", [](json& t) { t["rope_scaling"].erase("factor"); },
     "rope_scaling.factor: expected a number, found nothing"},
    {"factor", [](json& t) { t["rope_scaling"]["factor"] = 0.5; },
     "config: rope_scaling.factor: expected a value of at least 1, found 0.5"},
    {"original", [](json& t) { t["rope_scaling"]["original_max_position_embeddings"] = 0; },
     "config: rope_scaling.original_max_position_embeddings: expected a value above 0, found 0"},
    {"beta_slow", [](json& t) { t["rope_scaling"]["beta_slow"] = -1; },
     "config: rope_scaling.beta_slow: expected a value above 0, found -1"},
    {"beta_fast", [](json& t) { t["rope_scaling"]["beta_fast"] = 1; },
     "config: rope_scaling.beta_fast: expected a value above beta_slow (1), found 1"},
    {"zero", [](json& t) { t["hidden_size"] = 0; }, "config: hidden_size: expected a value in [1, 16777216], found 0"},
    {"negative", [](json& t) { t["sliding_window"] = -128; },
     "config: sliding_window: expected a value in [1, 16777216], found -128"},
    {"head_dim", [](json& t) { t["head_dim"] = 576; }, "config: head_dim: expected 512, found 576"},
    {"rope dim", [](json& t) { t["qk_rope_head_dim"] = 32; }, "config: qk_rope_head_dim: expected 64, found 32"},
    {"heads", [](json& t) { t["num_attention_heads"] = 63; },
     "config: num_attention_heads: expected a multiple of o_groups (8), found 63"},
    {"eps", [](json& t) { t["rms_norm_eps"] = -1; }, "config: rms_norm_eps: expected a value of at least 0, found -1"},
    {"theta", [](json& t) { t["compress_rope_theta"] = 1; },
     "config: compress_rope_theta: expected a value above 1, found 1"},
    {"positions", [](json& t) { t["max_position_embeddings"] = int64_t{1} << 31; },
     "config: max_position_embeddings: expected a value in [1, 2147483647], found 2147483648"},
    {"few ratios",
     [](json& t) {
       t["compress_ratios"] = {0, 0};
     },
     "config: compress_ratios: expected at least 40 entries (num_hidden_layers), found 2"},
    {"ratio", [](json& t) { t["compress_ratios"][5] = 4; }, "config: compress_ratios[5]: expected 0, 1 or 2, found 4"},
    {"ratio of another source", [](json& t) { t["compress_ratios"][5] = 1; },
     "config: compress_ratios[5]: expected 2 as its kv source layer 2 has, found 1"},
    {"no source",
     [](json& t) {
       t["kv_source_layer_ids"] = {8, 14, 20};
     },
     "config: kv_source_layer_ids: expected a source at or before layer 2, found none"},
    {"no index source", [](json& t) { t["index_source_layer_ids"] = {8}; },
     "config: index_source_layer_ids: expected a source at or before layer 2, found none"},
    {"source of ratio 0",
     [](json& t) {
       t["kv_source_layer_ids"] = {1, 2, 20};
     },
     "config: kv_source_layer_ids[0]: expected the id of a layer with a compress ratio of 1 or 2, found 1"},
    {"source beyond the model",
     [](json& t) {
       t["index_source_layer_ids"] = {2, 99};
     },
     "config: index_source_layer_ids[1]: expected the id of a layer with a compress ratio of 1 or 2, found 99"},
    {"order",
     [](json& t) {
       t["kv_source_layer_ids"] = {2, 20, 14};
     },
     "config: kv_source_layer_ids: expected ascending ids, found [2, 20, 14]"},
};

TEST(ModelConfig, RefusesBadFields) {
  const TempFolder folder;
  const json good = json::parse(io::model_config_text(io::deepseek_v41_flash()));
  for (const Case& c : kCases) {
    json document = good;
    c.spoil(document["text_config"]);
    const std::string path = folder.write("config.json", document.dump());
    const auto read = io::read_model_config(path);
    ASSERT_FALSE(read.ok()) << c.what;
    EXPECT_EQ(read.status().code(), MEGAMLA_IO_ERROR);
    EXPECT_EQ(read.status().message(), path + ": " + c.message) << c.what;
  }
}

TEST(ModelConfig, RefusesBrokenFiles) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& text) {
    const std::string path = folder.write("config.json", text);
    const auto read = io::read_model_config(path);
    return read.ok() ? "read" : read.status().message().substr(path.size() + 2);
  };
  EXPECT_EQ(refusal(""), "expected a JSON object, found ''");
  EXPECT_EQ(refusal("{"), "expected a JSON object, found '{'");
  EXPECT_EQ(refusal("\"x\""), "expected a JSON object, found 'x'");
  EXPECT_EQ(refusal("{}"), "text_config: expected an object, found nothing");
  EXPECT_EQ(refusal(R"({"text_config":[1]})"), "text_config: expected an object, found [1]");
  EXPECT_EQ(refusal(R"({"text_config":{"hidden_size":1,"hidden_size":2}})"), "hidden_size: expected once, found twice");
  EXPECT_EQ(io::read_model_config(folder.file("none")).status().message(),
            folder.file("none") + ": cannot be opened: No such file or directory");
  ModelConfig bad = io::deepseek_v41_flash();
  bad.o_groups = 0;
  EXPECT_FALSE(io::write_model_config(bad, folder.file("new.json")).ok());
  EXPECT_EQ(folder.entries(), 1);  // nothing was written
}

}  // namespace
}  // namespace megamla
