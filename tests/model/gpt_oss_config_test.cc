#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/arch/gpt_oss.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace lk {
namespace {

// The published 20b config, the fields that count.
Json base_config() {
  return *parse_json(R"({"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880,
    "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "max_position_embeddings": 131072, "sliding_window": 128, "rms_norm_eps": 1e-05,
    "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "original_max_position_embeddings": 4096, "truncate": false}})",
                     "config.json");
}

Result<GptOssConfig> parse(Json json) {
  HfConfig files;
  files.config = std::make_shared<const Json>(std::move(json));
  return parse_gpt_oss_config(files);
}

// The base config with `patch` (RFC 7386; null removes) applied.
Result<GptOssConfig> parse_with(const char* patch) {
  Json json = base_config();
  json.merge_patch(*parse_json(patch, "patch"));
  return parse(std::move(json));
}

TEST(GptOssConfig, Published) {
  auto config = parse(base_config());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->layers, 24);
  EXPECT_EQ(config->hidden, 2880);
  EXPECT_EQ(config->intermediate, 2880);
  EXPECT_EQ(config->experts, 32);
  EXPECT_EQ(config->experts_per_token, 4);
  EXPECT_EQ(config->heads, 64);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->vocab, 201088);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_EQ(config->sliding_window, 128);
  EXPECT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_EQ(config->swiglu_limit, 7.0f);
  EXPECT_EQ(config->swiglu_alpha, 1.702f);
  EXPECT_TRUE(config->rope.yarn);
  EXPECT_EQ(config->rope.theta, 150000);
  EXPECT_EQ(config->rope.factor, 32);
  EXPECT_EQ(config->rope.beta_fast, 32);
  EXPECT_EQ(config->rope.beta_slow, 1);
  EXPECT_EQ(config->rope.original_max_position_embeddings, 4096);
  EXPECT_FALSE(config->rope.truncate);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_TRUE(config->attention_bias);
  ASSERT_EQ(config->sliding.size(), 24u);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(config->sliding[i], i % 2 == 0);
}

TEST(GptOssConfig, OtherSpellings) {
  auto v5 = parse_with(R"({"rope_theta": null, "rope_scaling": null, "rope_parameters":
      {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8, "beta_fast": 16, "beta_slow": 2,
       "original_max_position_embeddings": 128}})");
  ASSERT_TRUE(v5) << v5.error().message;
  EXPECT_TRUE(v5->rope.yarn);
  EXPECT_EQ(v5->rope.theta, 10000);
  EXPECT_EQ(v5->rope.factor, 8);
  EXPECT_TRUE(v5->rope.truncate);
  auto plain = parse_with(R"({"rope_scaling": null})");
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_FALSE(plain->rope.yarn);
  plain = parse_with(R"({"rope_scaling": null, "rope_parameters": {"rope_type": "default"}})");
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_FALSE(plain->rope.yarn);
  EXPECT_EQ(plain->rope.theta, 150000);
  auto typed = parse_with(R"({"rope_scaling": {"rope_type": null, "type": "yarn"}})");
  ASSERT_TRUE(typed) << typed.error().message;
  auto old = parse_with(R"({"num_experts_per_tok": null, "experts_per_token": 3})");
  ASSERT_TRUE(old) << old.error().message;
  EXPECT_EQ(old->experts_per_token, 3);
  auto original = parse_with(R"({"initial_context_length": 2048,
                                 "rope_scaling": {"original_max_position_embeddings": null}})");
  ASSERT_TRUE(original) << original.error().message;
  EXPECT_EQ(original->rope.original_max_position_embeddings, 2048);
  auto layers = parse_with(
      R"({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]})");
  ASSERT_TRUE(layers) << layers.error().message;
  EXPECT_EQ(layers->sliding, (std::vector<bool>{false, true}));
  auto others = parse_with(R"({"swiglu_limit": 5, "swiglu_alpha": 2.5, "attention_bias": false,
                               "tie_word_embeddings": true})");
  ASSERT_TRUE(others) << others.error().message;
  EXPECT_EQ(others->swiglu_limit, 5.0f);
  EXPECT_EQ(others->swiglu_alpha, 2.5f);
  EXPECT_FALSE(others->attention_bias);
  EXPECT_TRUE(others->tie_word_embeddings);
}

TEST(GptOssConfig, EachNeededFieldMissing) {
  int fields = 0;
  const Json base = base_config();
  for (const auto& [key, value] : base.items()) {
    if (key == "model_type" || key == "rope_scaling") continue;
    Json json = base_config();
    json.erase(key);
    EXPECT_ERROR(parse(json), "field " + key + " is missing");
    ++fields;
  }
  EXPECT_EQ(fields, 13);
  for (const char* key : {"rope_type", "factor", "original_max_position_embeddings"}) {
    Json json = base_config();
    json["rope_scaling"].erase(key);
    EXPECT_ERROR(parse(json), "config.json: rope_scaling: field " + std::string(key));
    EXPECT_ERROR(parse(json), "is missing");
  }
}

// As Transformers fills them in.
TEST(GptOssConfig, YarnHasDefaults) {
  Json json = base_config();
  json["rope_scaling"].erase("beta_fast");
  json["rope_scaling"].erase("beta_slow");
  const auto config = parse(json);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->rope.beta_fast, 32);
  EXPECT_EQ(config->rope.beta_slow, 1);
}

TEST(GptOssConfig, EachFieldOutOfRange) {
  const Json base = base_config();
  for (const auto& [key, value] : base.items()) {
    if (!value.is_number()) continue;
    for (const Json& bad : {Json(-1), Json(0), Json("8"), Json(NAN), Json(INFINITY), Json(1e300),
                            Json::array(), Json(true), Json(INT64_MAX), Json(UINT64_MAX)}) {
      Json json = base_config();
      json[key] = bad;
      EXPECT_ERROR(parse(json), "field " + key + " is ");
    }
  }
  for (const char* key : {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}) {
    for (const Json& bad : {Json(-1), Json(0), Json("8"), Json(NAN), Json(1e300)}) {
      Json json = base_config();
      json["rope_scaling"][key] = bad;
      EXPECT_ERROR(parse(json), "config.json: rope_scaling: field " + std::string(key));
    }
  }
}

TEST(GptOssConfig, FieldsThatDisagree) {
  EXPECT_ERROR(parse_with(R"({"num_key_value_heads": 7})"),
               "num_attention_heads is 64, expected a multiple of num_key_value_heads = 7");
  EXPECT_ERROR(parse_with(R"({"num_experts_per_tok": 33})"),
               "num_experts_per_tok is 33, expected an integer from 1 to 32");
  EXPECT_ERROR(parse_with(R"({"head_dim": 63})"), "head_dim is 63, expected an even number");
  EXPECT_ERROR(parse_with(R"({"layer_types": ["full_attention"]})"),
               "layer_types lists 1 layers, expected num_hidden_layers = 24");
  EXPECT_ERROR(parse_with(R"({"layer_types": [1]})"), "layer_types is a list with other values");
  EXPECT_ERROR(parse_with(R"({"num_hidden_layers": 1, "layer_types": ["linear_attention"]})"),
               "layer_types[0] is linear_attention");
  EXPECT_ERROR(parse_with(R"({"rope_scaling": {"beta_slow": 64}})"),
               "beta_fast is 32, expected more than beta_slow = 64");
  EXPECT_ERROR(parse_with(R"({"rope_scaling": {"rope_type": "linear"}})"),
               "rope_type is linear, expected yarn or default");
  EXPECT_ERROR(parse_with(R"({"rope_scaling": {"attention_factor": 1.0}})"),
               "field attention_factor is not supported");
  EXPECT_ERROR(parse_with(R"({"rope_scaling": {"mrope_section": [1, 2]}})"),
               "field mrope_section is not supported");
  EXPECT_ERROR(parse_with(R"({"rope_scaling": null,
                              "rope_parameters": {"rope_type": "default", "rope_theta": 150000,
                                                  "low_freq_factor": 1}})"),
               "field low_freq_factor is not supported");
  EXPECT_ERROR(parse_with(R"({"rope_parameters": {"rope_type": "yarn", "factor": 16}})"),
               "factor differs in rope_scaling and rope_parameters");
  EXPECT_ERROR(parse_with(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 3}})"),
               "rope_theta differs from that of rope_parameters");
  EXPECT_ERROR(parse_with(R"({"rope_scaling": 3, "rope_parameters": null})"), "rope_scaling is 3");
  EXPECT_ERROR(parse_with(R"({"hidden_act": "gelu"})"), "hidden_act is gelu, expected silu");
  EXPECT_ERROR(parse_with(R"({"tie_word_embeddings": 1})"), "expected true or false");
}

TEST(GptOssConfig, Table) {
  auto config = parse_with(R"({"num_hidden_layers": 2, "attention_bias": false})");
  ASSERT_TRUE(config);
  const LinearTable table = gpt_oss_linear_table(*config);
  EXPECT_EQ(table.architecture, "gpt_oss");
  EXPECT_EQ(table.linears.size(), 2u * 7 + 2);
  EXPECT_EQ(table.plain.size(), 2u * 3 + 1);
  EXPECT_EQ(table.linears.front().stage, Stage::kEmbedding);
  EXPECT_EQ(table.linears.back().stage, Stage::kHead);
  const LinearSpec* up = table.find(Stage::kExpertUp, 1);
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->path(), "layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(up->row_order, RowOrder::kInterleavedGateUp);
  EXPECT_EQ(up->out, 5760);
  EXPECT_TRUE(up->bias);
  EXPECT_FALSE(table.find(Stage::kQuery, 0)->bias);
  EXPECT_EQ(table.find(Stage::kQuery, 0)->out, 4096);
  EXPECT_EQ(table.find(Stage::kRouter, 0)->out, 32);
  EXPECT_EQ(table.find(Stage::kQuery, 2), nullptr);
}

}  // namespace
}  // namespace lk
