// Public failures of other servers that concern reading an adapter, by the number that
// docs/bug-cases.md gives them: each is applied right or refused with a sentence.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "adapters/adapter_config.h"
#include "tests/adapters/adapter_fixture.h"

namespace lk {
namespace {

const std::string kLayer = "base_model.model.model.layers.0.";
const std::string kQ = kLayer + "self_attn.q_proj";
const LinearTable kTable = gpt_oss_test_table();

AdapterFiles query(int64_t rank = 2, DType dtype = DType::kBF16) {
  AdapterFiles files;
  files.add_pair(kQ, rank, 16, 32, dtype);
  return files;
}

std::string config_with(const std::string& fields) {
  return R"({"peft_type": "LORA", )" + fields + "}";
}

void expect_refused(const AdapterFiles& files, const std::vector<std::string>& words,
                    const LinearTable& table = kTable, const AdapterLoadOptions& options = {}) {
  const std::string message = refusal(files.load(table, options));
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
}

std::shared_ptr<const Adapter> loaded(const AdapterFiles& files) {
  const auto adapter = files.load(kTable);
  EXPECT_TRUE(adapter) << adapter.error().message;
  return adapter ? *adapter : nullptr;
}

AdapterFiles renamed(const std::string& from, const std::string& to) {
  AdapterFiles files = query();
  for (const std::string& name : files.names()) {
    std::string other = name;
    if (const size_t at = other.find(from); at != other.npos)
      files.rename(name, other.replace(at, from.size(), to));
  }
  return files;
}

TEST(BugCases, A01_ModulesThatTheModelDoesNotHave) {
  AdapterFiles only;
  only.add_pair(kLayer + "self_attn.other_proj", 2, 16, 32);
  expect_refused(only, {"self_attn.other_proj"});
  AdapterFiles some = query();
  some.add_pair(kLayer + "self_attn.other_proj", 2, 16, 32);
  expect_refused(some, {"self_attn.other_proj"});
}

TEST(BugCases, A02_OtherPrefix) {
  const uint64_t identity = loaded(query())->identity;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"base_model.model.model.", "base_model.model.language_model.model."},
           {"base_model.model.", ""},
           {"base_model.model.model.", "base_model.model.model.model."}}) {
    EXPECT_EQ(loaded(renamed(from, to))->identity, identity) << to;
  }
  expect_refused(renamed("base_model.model.model.", "base_model.model.vision_tower."),
                 {"vision_tower.layers.0.self_attn.q_proj"});
}

TEST(BugCases, A03_TrainedOnAWrapperOfTheModel) {
  const uint64_t identity = loaded(query())->identity;
  EXPECT_EQ(loaded(renamed("model.model.", "model.model.language_model."))->identity, identity);
}

TEST(BugCases, A06_UnusualPlacesAreAppliedOrRefused) {
  AdapterFiles router;
  router.add_pair(kLayer + "mlp.router", 2, 16, 3);
  ASSERT_EQ(loaded(router)->modules.size(), 1u);
  EXPECT_EQ(loaded(router)->modules[0].spec->stage, Stage::kRouter);
  for (const char* module : {"mlp.gate_proj", "mlp.shared_expert.gate_proj"}) {
    AdapterFiles files;
    files.add_pair(kLayer + module, 2, 16, 12);
    expect_refused(files, {module});
  }
}

TEST(BugCases, A11_AdapterNamesInsideTensorNames) {
  const uint64_t identity = loaded(query())->identity;
  EXPECT_EQ(loaded(renamed(".weight", ".default.weight"))->identity, identity);
  EXPECT_EQ(loaded(renamed(".weight", ".lora.weight"))->identity, identity);
  AdapterFiles broken;
  broken.add_random(kQ + ".lora_A", {2, 16});
  broken.add_random(kQ + ".weight", {32, 2});
  expect_refused(broken, {"q_proj"});
}

TEST(BugCases, B05_WrappersOfStackedExperts) {
  const std::string experts = kLayer + "mlp.experts";
  AdapterFiles attention = query();
  attention.config = config_with(R"("r": 2, "lora_alpha": 4, "target_modules": ["q_proj"])");
  AdapterFiles both = query();
  both.config = config_with(
      R"("r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
         "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])");
  both.add_pair(experts + ".base_layer", 3 * 2, 16, 24);
  both.add_pair(experts, 3 * 2, 12, 16);
  const auto adapter = loaded(both);
  ASSERT_TRUE(adapter);
  EXPECT_NE(adapter->identity, loaded(attention)->identity);
  for (const Stage stage : {Stage::kQuery, Stage::kExpertUp, Stage::kExpertDown}) {
    const AdapterModule* module = adapter->find(stage, 0);
    ASSERT_TRUE(module) << stage_name(stage);
    for (size_t e = 0; e < module->experts.size(); ++e) {
      const std::vector<float> delta = dense_delta(*module, e);
      EXPECT_TRUE(std::any_of(delta.begin(), delta.end(), [](float v) { return v != 0; }));
    }
  }
}

TEST(BugCases, B08_TheNamesOfNewBlocks) {
  AdapterFiles files = query();
  files.add_pair(kLayer + "mlp.router", 2, 16, 3);
  const std::vector<std::string> unknown = {"mlp.shared_expert.up_proj", "mlp.shared_expert_gate",
                                            "linear_attn.in_proj_qkvz"};
  for (const std::string& module : unknown) files.add_pair(kLayer + module, 2, 16, 12);
  const std::string message = refusal(files.load(kTable));
  for (const std::string& module : unknown)
    EXPECT_NE(message.find(kLayer + module + ".lora_A.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("6 tensors"), std::string::npos) << message;
  for (const char* known : {"q_proj", "mlp.router"})
    EXPECT_EQ(message.find(known), std::string::npos) << message;
}

TEST(BugCases, B09_OneAForAllExperts) {
  AdapterFiles files;
  files.config = config_with(R"("r": 2, "target_parameters": ["mlp.experts.down_proj"])");
  files.add_random(kLayer + "mlp.experts.lora_A.weight", {2, 12});
  files.add_random(kLayer + "mlp.experts.lora_B.weight", {16, 3 * 2});
  expect_refused(files, {"mlp.experts.lora_A.weight", "shared by all 3 experts"});
}

TEST(BugCases, C01_RankStabilisedScale) {
  AdapterFiles files = query(16);
  files.config = config_with(R"("r": 16, "lora_alpha": 16, "use_rslora": true)");
  const auto stabilised = loaded(files);
  EXPECT_EQ(stabilised->modules[0].experts[0].scale, 4.0f);
  files.config = config_with(R"("r": 16, "lora_alpha": 16, "use_rslora": false)");
  EXPECT_EQ(loaded(files)->modules[0].experts[0].scale, 1.0f);
  EXPECT_NE(loaded(files)->identity, stabilised->identity);
}

TEST(BugCases, C03_AlphaOverRank) {
  std::set<uint64_t> identities;
  for (const auto& [alpha, scale] :
       std::vector<std::pair<int, float>>{{1, 0.5f}, {2, 1.0f}, {8, 4.0f}}) {
    AdapterFiles files = query();
    files.config = config_with(fmt::format(R"("r": 2, "lora_alpha": {})", alpha));
    const auto adapter = loaded(files);
    EXPECT_EQ(adapter->modules[0].experts[0].scale, scale);
    identities.insert(adapter->identity);
  }
  EXPECT_EQ(identities.size(), 3u);
}

TEST(BugCases, C04_Dora) {
  AdapterFiles flagged = query();
  flagged.config = config_with(R"("r": 2, "use_dora": true)");
  expect_refused(flagged, {"use_dora"});
  AdapterFiles unflagged = query();
  unflagged.add_random(kQ + ".lora_magnitude_vector", {32});
  expect_refused(unflagged, {"lora_magnitude_vector", "DoRA"});
}

TEST(BugCases, C05_FullyTrainedModules) {
  AdapterFiles files = query();
  files.config = config_with(R"("r": 2, "modules_to_save": ["lm_head"])");
  files.add_random("base_model.model.lm_head.weight", {40, 16});
  expect_refused(files, {"lm_head"});
}

TEST(BugCases, C06_TokenizerFilesBesideTheAdapter) {
  const std::string folder = query().write();
  write_text(folder + "/tokenizer.json", "{}");
  write_text(folder + "/added_tokens.json", R"({"<|last|>": 39})");
  EXPECT_TRUE(load_peft_adapter(folder, "x", kTable, {}));
  write_text(folder + "/added_tokens.json", R"({"<|new|>": 40})");
  const std::string message = refusal(load_peft_adapter(folder, "x", kTable, {}));
  EXPECT_NE(message.find("'<|new|>' with id 40"), std::string::npos) << message;
}

TEST(BugCases, C07_ResizedEmbedding) {
  AdapterFiles files = query();
  files.add_random("base_model.model.model.embed_tokens.weight", {40 + 64, 16});
  expect_refused(files, {"[104, 16]", "[40, 16]"});
}

TEST(BugCases, C08_TargetModulesInAnyForm) {
  std::set<uint64_t> identities;
  for (const char* target :
       {R"("target_modules": ["q_proj"],)", R"("target_modules": ".*q_proj",)",
        R"("target_modules": "all-linear",)", R"("target_modules": null,)", ""}) {
    AdapterFiles files = query();
    files.config = config_with(std::string(target) + R"("r": 2, "lora_alpha": 4)");
    identities.insert(loaded(files)->identity);
  }
  EXPECT_EQ(identities.size(), 1u);
}

TEST(BugCases, C09_TheTrainingBaseIsNotFetched) {
  for (const char* base : {"null", R"("./nope")", R"("private-org/gated-model")"}) {
    AdapterFiles files = query();
    files.config =
        config_with(fmt::format(R"("r": 2, "lora_alpha": 4, "base_model_name_or_path": {})", base));
    EXPECT_TRUE(loaded(files)) << base;
  }
}

TEST(BugCases, C10_OtherDimensions) {
  AdapterFiles files;
  files.add_pair(kQ, 2, 24, 32);
  expect_refused(files, {"lora_A.weight has shape [2, 24], expected [r, 16]"});
}

// The base that an adapter was trained on is told by its name alone, which decides nothing.
TEST(BugCases, D07_D09_BasesInOtherFormats) {
  const uint64_t identity = loaded(query())->identity;
  for (const char* base : {"openai/gpt-oss-20b", "unsloth/gpt-oss-20b-unsloth-bnb-4bit",
                           "someone/gpt-oss-20b-GPTQ", "unsloth/gpt-oss-20b-BF16",
                           "nvidia/gpt-oss-20b-NVFP4", "RedHatAI/gpt-oss-20b-FP8-dynamic"}) {
    AdapterFiles files = query();
    files.config = config_with(
        fmt::format(R"("r": 2, "lora_alpha": 4, "base_model_name_or_path": "{}")", base));
    const auto adapter = loaded(files);
    ASSERT_TRUE(adapter) << base;
    EXPECT_EQ(adapter->identity, identity) << base;
  }
  // What training changed in the base itself does not go by the name, and is told.
  for (const char* init : {R"("loftq")", R"("pissa")"}) {
    AdapterFiles files = query();
    files.config =
        config_with(fmt::format(R"("r": 2, "lora_alpha": 4, "init_lora_weights": {})", init));
    const auto adapter = loaded(files);
    ASSERT_EQ(adapter->warnings.size(), 1u) << init;
    EXPECT_NE(adapter->warnings[0].find("changed the base weights"), std::string::npos);
  }
}

TEST(BugCases, O01_BrokenFolders) {
  const std::string folder = query().write();
  const std::string bytes = query().bytes();
  const auto refused = [&](const std::string& why) {
    EXPECT_FALSE(load_peft_adapter(folder, "x", kTable, {})) << why;
  };
  write_text(folder + "/adapter_model.safetensors", "");
  refused("empty");
  write_text(folder + "/adapter_model.safetensors", bytes.substr(0, bytes.size() / 2));
  refused("cut");
  write_text(folder + "/adapter_model.safetensors", std::string(8, '\xff') + bytes.substr(8));
  refused("a header length beyond everything");
  write_text(folder + "/adapter_model.safetensors", bytes);
  EXPECT_TRUE(load_peft_adapter(folder, "x", kTable, {}));
  write_text(folder + "/adapter_config.json", "{\"r\": ");
  refused("broken JSON");
}

TEST(BugCases, O03_RankOverTheLimit) {
  AdapterFiles files = query(9);
  files.config = config_with(R"("r": 9)");
  expect_refused(files, {"9", "8"}, kTable, {.max_rank = 8});
}

TEST(BugCases, O05_AnotherModelsAdapter) {
  AdapterFiles qwen;
  qwen.add_pair(kLayer + "mlp.shared_expert.up_proj", 2, 16, 12);
  expect_refused(qwen, {"gpt_oss"});
  AdapterFiles larger;
  larger.add_pair(kQ, 2, 2880, 4096);
  expect_refused(larger, {"[2, 2880]", "[r, 16]"});
}

TEST(BugCases, O07_Types) {
  const uint64_t identity = loaded(query())->identity;
  EXPECT_EQ(loaded(query(2, DType::kF32))->identity, identity);
  EXPECT_EQ(loaded(query(2, DType::kF16))->identity, identity);
  AdapterFiles fp8;
  fp8.add_pair(kQ, 2, 16, 32, DType::kF8E4M3);
  expect_refused(fp8, {"F8_E4M3"});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    AdapterFiles files = query();
    std::vector<float> values(32, 1.0f);
    values[5] = bad;
    files.add(kQ + ".lora_A.weight", {2, 16}, values, DType::kF32);
    expect_refused(files, {"not finite", "lora_A"});
  }
}

TEST(BugCases, O08_LoneHalves) {
  AdapterFiles a = query(), b = query(), ranks;
  a.erase(kQ + ".lora_B.weight");
  expect_refused(a, {"lora_A"});
  b.erase(kQ + ".lora_A.weight");
  expect_refused(b, {"lora_B"});
  ranks.add_random(kQ + ".lora_A.weight", {2, 16});
  ranks.add_random(kQ + ".lora_B.weight", {32, 3});
  expect_refused(ranks, {"2 and 3"});
}

TEST(BugCases, O09_TensorsThatAreNoLora) {
  AdapterFiles harmless = query();
  harmless.add_random(kLayer + "self_attn.rotary_emb.inv_freq", {8});
  EXPECT_EQ(loaded(harmless)->warnings.size(), 1u);
  AdapterFiles norm = query();
  norm.add_random(kLayer + "input_layernorm.weight", {16});
  expect_refused(norm, {"input_layernorm.weight"});
}

TEST(BugCases, W05_PicklesAreNeverOpened) {
  const std::string folder = new_folder();
  write_text(folder + "/adapter_config.json", query().config);
  write_text(folder + "/adapter_model.bin", "\x80\x04.");
  const std::string message = refusal(load_peft_adapter(folder, "x", kTable, {}));
  EXPECT_NE(message.find("pickles are not opened"), std::string::npos) << message;
  write_text(folder + "/adapter_model.safetensors", query().bytes());
  EXPECT_TRUE(load_peft_adapter(folder, "x", kTable, {}));
}

}  // namespace
}  // namespace lk
