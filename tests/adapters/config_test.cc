#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "adapters/adapter_config.h"
#include "base/json.h"

namespace lk {
namespace {

Result<AdapterConfig> parse(const std::string& fields) {
  return parse_adapter_config(R"({"peft_type": "LORA", )" + fields + "}", "adapter_config.json");
}

AdapterConfig parsed(const std::string& fields) {
  auto config = parse(fields);
  EXPECT_TRUE(config) << fields << ": " << config.error().message;
  return config ? std::move(*config) : AdapterConfig{};
}

float scale(const AdapterConfig& config, std::string_view path) {
  const auto scaling = config.scaling(path, MatchBudget());
  EXPECT_TRUE(scaling) << scaling.error().message;
  return scaling ? scaling->scale : 0;
}

TEST(AdapterConfig, DefaultsArePefts) {
  const AdapterConfig config = parsed(R"("bias": "none")");
  EXPECT_EQ(config.r, 8);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_EQ(scale(config, "model.layers.0.self_attn.q_proj"), 1.0f);
}

TEST(AdapterConfig, ScaleFollowsAlphaRankAndRslora) {
  EXPECT_EQ(scale(parsed(R"("r": 16, "lora_alpha": 8)"), "x"), 0.5f);
  EXPECT_EQ(scale(parsed(R"("r": 16, "lora_alpha": 16)"), "x"), 1.0f);
  EXPECT_EQ(scale(parsed(R"("r": 16, "lora_alpha": 64)"), "x"), 4.0f);
  EXPECT_EQ(scale(parsed(R"("r": 16, "lora_alpha": 16, "use_rslora": true)"), "x"), 4.0f);
  EXPECT_FLOAT_EQ(scale(parsed(R"("r": 3, "lora_alpha": 2.5, "use_rslora": true)"), "x"),
                  2.5f / std::sqrt(3.0f));
}

TEST(AdapterConfig, PatternsAreSearchedInFileOrderAndApart) {
  const AdapterConfig config = parsed(
      R"("r": 4, "lora_alpha": 4, "rank_pattern": {"v_proj": 8, "layers.0.*": 16, "q_proj": 2},
         "alpha_pattern": {"self_attn.q_proj": 32})");
  const auto rank = [&](std::string_view path) {
    return config.scaling(path, MatchBudget())->rank;
  };
  EXPECT_EQ(rank("model.layers.0.self_attn.v_proj"), 8);
  EXPECT_EQ(rank("model.layers.0.self_attn.q_proj"), 16);
  EXPECT_EQ(rank("model.layers.1.self_attn.q_proj"), 2);
  EXPECT_EQ(rank("model.layers.1.self_attn.k_proj"), 4);
  EXPECT_EQ(scale(config, "model.layers.1.self_attn.q_proj"), 16.0f);
  EXPECT_EQ(scale(config, "model.layers.1.self_attn.v_proj"), 0.5f);
}

TEST(AdapterConfig, PatternMeansWhatPythonsRegexMeans) {
  struct Row {
    const char* pattern;
    const char* path;
    bool hit;
  };
  for (const Row& row : {
           Row{"q_proj", "model.layers.0.self_attn.q_proj", true},
           Row{"q_proj", "q_proj", true},
           Row{"proj", "model.layers.0.self_attn.q_proj", false},
           Row{"self_attn.q_proj", "model.self_attnXq_proj", true},
           Row{"^q_proj", "model.q_proj", false},
           Row{"^model.q_proj", "model.q_proj", true},
           Row{"a|b", "model.b", true},
           Row{"q_proj|v_proj", "model.v_proj_x", false},
           Row{".*\\.gate_up_proj", "model.layers.3.mlp.experts.gate_up_proj", true},
           Row{"layers\\.(1|2)\\..*", "model.layers.2.x", true},
           Row{"layers\\.(1|2)\\..*", "model.layers.3.x", false},
           Row{"(?P<n>q)_proj", "model.q_proj", true},
       }) {
    const auto pattern = NamePattern::compile(row.pattern, NamePattern::Mode::kSuffix, "t");
    ASSERT_TRUE(pattern) << row.pattern;
    EXPECT_EQ(*pattern->matches(row.path, MatchBudget()), row.hit)
        << row.pattern << " on " << row.path;
  }
  const auto whole = NamePattern::compile("model.*proj", NamePattern::Mode::kWhole, "t");
  EXPECT_TRUE(*whole->matches("model.q_proj", MatchBudget()));
  EXPECT_FALSE(*whole->matches("model.q_proj.x", MatchBudget()));
  const auto plain = NamePattern::compile("q_proj", NamePattern::Mode::kWhole, "t");
  EXPECT_FALSE(*plain->matches("model.q_proj", MatchBudget()));
}

TEST(AdapterConfig, HostilePatternsAreBounded) {
  const std::string deep = std::string(5000, '(') + std::string(5000, ')');
  EXPECT_FALSE(NamePattern::compile(deep, NamePattern::Mode::kSuffix, "t"));
  EXPECT_FALSE(NamePattern::compile(std::string(400, '(') + std::string(400, ')'),
                                    NamePattern::Mode::kSuffix, "t"));
  const auto slow = NamePattern::compile("(a+)+", NamePattern::Mode::kSuffix, "t");
  ASSERT_TRUE(slow);
  const auto hit = slow->matches(std::string(60, 'a') + "!", MatchBudget());
  ASSERT_FALSE(hit);
  EXPECT_NE(hit.error().message.find("(a+)+"), std::string::npos) << hit.error().message;
  const auto late = slow->matches("x", MatchBudget(std::chrono::milliseconds(-1)));
  EXPECT_FALSE(late);
}

TEST(AdapterConfig, TargetModulesInEveryForm) {
  using Form = ModuleSelection::Form;
  EXPECT_EQ(parsed(R"("target_modules": null)").target_modules.form, Form::kNone);
  EXPECT_EQ(parsed(R"("target_modules": [])").target_modules.form, Form::kNone);
  EXPECT_EQ(parsed(R"("target_modules": "all-linear")").target_modules.form, Form::kAllLinear);
  EXPECT_EQ(parsed(R"("target_modules": "ALL-LINEAR")").target_modules.form, Form::kAllLinear);
  EXPECT_EQ(parsed(R"("target_modules": ".*q_proj")").target_modules.form, Form::kPattern);
  EXPECT_EQ(parsed(R"("target_modules": ["q_proj"])").target_modules.suffixes.size(), 1u);
  EXPECT_EQ(parsed(R"("layers_to_transform": 3)").layers_to_transform, std::vector<int64_t>{3});
  EXPECT_EQ(parsed(R"("layers_to_transform": [1, 2])").layers_to_transform.size(), 2u);
}

TEST(AdapterConfig, PeftVersions) {
  EXPECT_EQ(PeftVersion::parse("0.21.0")->minor, 21);
  EXPECT_FALSE(PeftVersion::parse("0.21.0")->dev);
  EXPECT_TRUE(PeftVersion::parse("0.18.1.dev0@abcdef")->dev);
  EXPECT_EQ(PeftVersion::parse("0.18.1.dev0@abcdef")->patch, 1);
  EXPECT_TRUE(PeftVersion::parse("0.19.0rc1"));
  for (const char* bad : {"", "0", "0.19", "0.19.", "a.b.c", "0.-1.0", "0.19.99999999999"}) {
    EXPECT_FALSE(PeftVersion::parse(bad)) << bad;
  }
  EXPECT_TRUE(PeftVersion::parse("1.0.0")->at_least(0, 19, 1));
  EXPECT_FALSE(PeftVersion::parse("0.18.9")->at_least(0, 19, 1));
  EXPECT_EQ(parsed(R"("peft_version": "unknown")").warnings.size(), 1u);
}

TEST(AdapterConfig, InformativeFieldsPass) {
  const AdapterConfig config = parsed(
      R"("task_type": "CAUSAL_LM", "inference_mode": true, "lora_dropout": 0.05, "revision": "main",
         "auto_mapping": {"base_model_class": "X"}, "base_model_name_or_path": "./nope", "megatron_core": "megatron.core",
         "qalora_group_size": 16, "runtime_config": {"ephemeral_gpu_offload": false}, "loftq_config": {},
         "layers_pattern": "layers", "eva_config": {"rho": 2.0}, "ensure_weight_tying": false, "bias": "none",
         "modules_to_save": [], "use_dora": false, "some_later_flag": false, "some_later_config": null,
         "layer_replication": null, "init_lora_weights": "gaussian")");
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
}

TEST(AdapterConfig, ChangedBaseWeightsWarn) {
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga"}) {
    const AdapterConfig config = parsed(fmt::format(R"("init_lora_weights": "{}")", init));
    ASSERT_EQ(config.warnings.size(), 1u) << init;
    EXPECT_NE(config.warnings[0].find(init), std::string::npos);
  }
  for (const char* init : {"true", "\"eva\"", "\"orthogonal\"", "\"gaussian\""}) {
    EXPECT_TRUE(parsed(fmt::format(R"("init_lora_weights": {})", init)).warnings.empty()) << init;
  }
}

TEST(AdapterConfig, OldFilesWithTwoPatternsWarn) {
  const char* patterns =
      R"("rank_pattern": {"q_proj": 2}, "alpha_pattern": {"self_attn.q_proj": 2})";
  EXPECT_EQ(parsed(patterns).warnings.size(), 1u);
  EXPECT_TRUE(parsed(std::string(patterns) + R"(, "peft_version": "0.18.0")").warnings.empty());
}

// Each refusal names the field and what it found.
TEST(AdapterConfig, RefusalsNameTheField) {
  struct Row {
    const char* fields;
    const char* field;
    const char* word;
  };
  for (const Row& row : {
           Row{R"("use_dora": true)", "use_dora", "DoRA"},
           Row{R"("bias": "all")", "bias", "all"},
           Row{R"("bias": "lora_only")", "bias", "lora_only"},
           Row{R"("lora_bias": true)", "lora_bias", "bias"},
           Row{R"("modules_to_save": ["lm_head"])", "modules_to_save", "lm_head"},
           Row{R"("fan_in_fan_out": true)", "fan_in_fan_out", "Conv1D"},
           Row{R"("layer_replication": [[0, 4], [2, 5]])", "layer_replication", "[[0,4],[2,5]]"},
           Row{R"("trainable_token_indices": [1, 2])", "trainable_token_indices", "[1,2]"},
           Row{R"("alora_invocation_tokens": [5])", "alora_invocation_tokens", "aLoRA"},
           Row{R"("use_qalora": true)", "use_qalora", "QALoRA"},
           Row{R"("use_bdlora": {"nblocks": 2})", "use_bdlora", "block"},
           Row{R"("arrow_config": {"top_k": 2})", "arrow_config", "Arrow"},
           Row{R"("kasa_config": {"beta": 2})", "kasa_config", "KaSA"},
           Row{R"("velora_config": {"num_groups": 2})", "velora_config", "VeLoRA"},
           Row{R"("monteclora_config": {"x": 2})", "monteclora_config", "Monte"},
           Row{R"("shiny_new_thing": {"x": 2})", "shiny_new_thing", "unknown"},
           Row{R"("r": null)", "'r'", "null"},
           Row{R"("lora_alpha": null)", "'lora_alpha'", "null"},
           Row{R"("r": 0)", "'r'", "0"},
           Row{R"("r": -4)", "'r'", "-4"},
           Row{R"("r": 2.5)", "'r'", "2.5"},
           Row{R"("r": "8")", "'r'", "\"8\""},
           Row{R"("r": 18446744073709551615)", "'r'", "18446744073709551615"},
           Row{R"("lora_alpha": NaN)", "lora_alpha", "number"},
           Row{R"("lora_alpha": Infinity)", "lora_alpha", "number"},
           Row{R"("lora_alpha": "16")", "lora_alpha", "16"},
           Row{R"("use_rslora": "yes")", "use_rslora", "yes"},
           Row{R"("rank_pattern": [1])", "rank_pattern", "[1]"},
           Row{R"("rank_pattern": {"q_proj": 0})", "q_proj", "0"},
           Row{R"("rank_pattern": {"(": 4})", "rank_pattern", "regular expression"},
           Row{R"("alpha_pattern": {"q_proj": null})", "q_proj", "null"},
           Row{R"("target_modules": 5)", "target_modules", "5"},
           Row{R"("target_modules": [5])", "target_modules", "[5]"},
           Row{R"("target_modules": "(q")", "target_modules", "regular expression"},
           Row{R"("target_parameters": "experts")", "target_parameters", "experts"},
           Row{R"("layers_to_transform": ["a"])", "layers_to_transform", "a"},
           Row{R"("peft_version": 3)", "peft_version", "3"},
       }) {
    const auto config = parse(row.fields);
    ASSERT_FALSE(config) << row.fields;
    const std::string& message = config.error().message;
    EXPECT_NE(message.find(row.field), std::string::npos) << message;
    EXPECT_NE(message.find(row.word), std::string::npos) << message;
    EXPECT_EQ(message.rfind("adapter_config.json", 0), 0u) << message;
  }
}

TEST(AdapterConfig, OtherPeftTypesAndShapesAreRefused) {
  for (const char* text :
       {R"({"peft_type": "IA3"})", R"({"peft_type": "ADALORA"})", R"({"peft_type": "lora"})",
        R"({"r": 8})", R"([])", R"("LORA")", "", "{", "{\"peft_type\": \"LORA\","}) {
    EXPECT_FALSE(parse_adapter_config(text, "adapter_config.json")) << text;
  }
}

}  // namespace
}  // namespace lk
