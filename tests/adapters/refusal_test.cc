// Files that are refused, and that the sentence names tensor or field, expected and found.
#include <gtest/gtest.h>

#include <limits>

#include "tests/adapters/adapter_fixture.h"

namespace lk {
namespace {

const std::string kLayer = "base_model.model.model.layers.0.";
const std::string kQ = kLayer + "self_attn.q_proj";
const std::string kExperts = kLayer + "mlp.experts";
const LinearTable kTable = gpt_oss_test_table();

AdapterFiles good() {
  AdapterFiles files;
  files.add_pair(kQ, 2, 16, 32);
  return files;
}

std::string config_with(const std::string& fields) {
  return R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, )" + fields + "}";
}

// Expects a refusal whose sentence holds every word.
void expect_refused(const AdapterFiles& files, const std::vector<std::string>& words,
                    const AdapterLoadOptions& options = {}) {
  const std::string message = refusal(files.load(kTable, options));
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Refusal, TheGoodFileLoads) {
  const auto adapter = good().load(kTable);
  ASSERT_TRUE(adapter) << adapter.error().message;
  EXPECT_TRUE((*adapter)->warnings.empty());
}

TEST(Refusal, NamesThatMeanNothingHere) {
  for (const char* module : {"base_model.model.model.layers.9.self_attn.q_proj",
                             "base_model.model.model.layers.0.self_attn.qkv_proj",
                             "base_model.model.model.visual.layers.0.self_attn.q_proj",
                             "base_model.model.model.layers.0.mlp.gate_proj",
                             "base_model.model.model.layers.0.mlp.shared_expert.gate_proj",
                             "base_model.model.model.layers.0.mlp.gate",
                             "base_model.model.model.layers.0.linear_attn.in_proj_qkv",
                             "base_model.model.mtp.layers.0.self_attn.q_proj",
                             "base_model.model.model.layers.0.self_attn.q_proj.0",
                             "base_model.model.model.layers.00.self_attn.q_proj"}) {
    AdapterFiles files = good();
    files.add_pair(module, 2, 16, 32);
    expect_refused(files, {"2 tensors belong to no linear of a gpt_oss model", module});
  }
}

TEST(Refusal, ManyUnknownNamesAreCounted) {
  AdapterFiles files;
  for (int i = 0; i < 20; ++i) files.add_pair(fmt::format("a.b{}", i), 2, 16, 32);
  expect_refused(files, {"40 tensors", "a.b0.lora_A.weight", "and 32 more"});
}

TEST(Refusal, MalformedNames) {
  struct Row {
    std::string from, to;
  };
  for (const Row& row : {
           Row{kQ + ".lora_A.weight", kQ + "_A.weight"},
           Row{kQ + ".lora_A.weight", kQ + ".lora_A"},
           Row{kQ + ".lora_A.weight", kQ + ".lora_A.x.y.weight"},
           Row{kQ + ".lora_A.weight", "lora_A.weight"},
           Row{kQ + ".lora_A.weight", ""},
           Row{kQ + ".lora_A.weight", "."},
       }) {
    AdapterFiles files = good();
    files.rename(row.from, row.to);
    EXPECT_FALSE(files.load(kTable)) << row.to;
  }
}

TEST(Refusal, LoneHalves) {
  for (const char* half : {".lora_A.weight", ".lora_B.weight"}) {
    AdapterFiles files = good();
    files.add_pair(kLayer + "self_attn.k_proj", 2, 16, 16);
    files.erase(kLayer + "self_attn.k_proj" + half);
    const std::string other =
        half == std::string(".lora_A.weight") ? ".lora_B.weight" : ".lora_A.weight";
    expect_refused(files, {kLayer + "self_attn.k_proj" + other, "no partner"});
  }
}

TEST(Refusal, TwoAdaptersInOneFile) {
  AdapterFiles files = good();
  files.add_random(kQ + ".lora_A.other.weight", {2, 16});
  expect_refused(files, {kQ + ".lora_A.weight", kQ + ".lora_A.other.weight", "same matrix"});
  AdapterFiles nested = good();
  nested.add_pair(kQ + ".base_layer", 2, 16, 32);
  expect_refused(nested, {"two pairs for one matrix"});
}

TEST(Refusal, Shapes) {
  struct Row {
    Shape a, b;
    std::vector<std::string> words;
  };
  for (const Row& row : {
           Row{{2, 24}, {32, 2}, {".lora_A.weight has shape [2, 24], expected [r, 16]"}},
           Row{{2, 16}, {48, 2}, {".lora_B.weight has shape [48, 2], expected [32, r]"}},
           Row{{2, 16}, {32, 3}, {"differ in rank: 2 and 3"}},
           Row{{0, 16}, {32, 0}, {"rank 0"}},
           Row{{2, 0}, {32, 2}, {"expected [r, 16]"}},
           Row{{1, 2, 16}, {32, 2}, {"[1, 2, 16]", "two dimensions"}},
           Row{{32}, {32, 2}, {"[32]", "two dimensions"}},
       }) {
    AdapterFiles files;
    files.add_random(kQ + ".lora_A.weight", row.a);
    files.add_random(kQ + ".lora_B.weight", row.b);
    expect_refused(files, row.words);
  }
}

TEST(Refusal, ExpertShapes) {
  struct Row {
    Shape a, b;
    std::vector<std::string> words;
  };
  const std::string config = config_with(R"("target_parameters": ["mlp.experts.down_proj"])");
  for (const Row& row : {
           Row{{6, 10},
               {16, 6},
               {"[6, 10]", "layers.0.mlp.experts.down_proj", "[3*r, 12]", "[16, 3*r]"}},
           Row{{7, 12}, {16, 7}, {"[7, 12]", "3 experts"}},
           Row{{6, 12}, {16, 9}, {"[16, 9]"}},
           Row{{2, 12}, {16, 6}, {"shared by all 3 experts"}},
           Row{{6, 16}, {24, 6}, {"[6, 16]"}},
       }) {
    AdapterFiles files;
    files.config = config;
    files.add_random(kExperts + ".lora_A.weight", row.a);
    files.add_random(kExperts + ".lora_B.weight", row.b);
    if (row.a == Shape{6, 16}) {
      // The shapes of gate_up_proj under the name of down_proj: taken for what they are, with a
      // warning.
      const auto adapter = files.load(kTable);
      EXPECT_NE(
          refusal(adapter).find("target_parameters entry 'mlp.experts.down_proj' has no tensors"),
          std::string::npos)
          << refusal(adapter);
      continue;
    }
    expect_refused(files, row.words);
  }
}

TEST(Refusal, B06_PrivateLayouts) {
  AdapterFiles files = good();
  files.add_random(kExperts + ".lora_gate_and_up_A", {3, 16, 2});
  files.add_random(kExperts + ".lora_gate_and_up_B", {3, 2, 24});
  expect_refused(files, {"2 tensors", kExperts + ".lora_gate_and_up_A [3, 16, 2]"});
  AdapterFiles stacked = good();
  stacked.add_random(kExperts + ".lora_A.weight", {3, 2, 16});
  stacked.add_random(kExperts + ".lora_B.weight", {3, 24, 2});
  expect_refused(stacked, {kExperts + ".lora_A.weight", "[3, 2, 16]"});
}

TEST(Refusal, Experts) {
  AdapterFiles files = good();
  files.add_pair(kExperts + ".3.up_proj", 2, 16, 12);
  expect_refused(files, {kExperts + ".3.up_proj", "expert 3", "0 to 2"});
  AdapterFiles both = good();
  both.add_pair(kExperts + ".1.up_proj", 2, 16, 12);
  both.add_pair(kExperts, 6, 16, 24);
  expect_refused(both, {"layers.0.mlp.experts.gate_up_proj in two layouts"});
  AdapterFiles twice = good();
  twice.add_pair(kExperts + ".1.up_proj", 2, 16, 12);
  twice.add_pair(kExperts + ".1.w3", 2, 16, 12);
  expect_refused(twice, {"second pair for the same rows"});
  AdapterFiles third = good();
  third.add_pair(kExperts, 6, 12, 16);
  third.add_pair(kExperts + ".base_layer", 6, 16, 24);
  third.add_pair(kExperts + ".base_layer.base_layer", 6, 16, 24);
  expect_refused(third, {"2 expert parameters", "3 pairs"});
}

TEST(Refusal, TargetParametersWithoutTensors) {
  AdapterFiles files = good();
  files.config = config_with(R"("target_parameters": ["mlp.experts.gate_up_proj"])");
  expect_refused(files, {"target_parameters", "mlp.experts.gate_up_proj", "no tensors"});
  files.config = config_with(R"("target_parameters": ["mlp.gate.weight"])");
  expect_refused(files, {"mlp.gate.weight", "names no parameter"});
}

TEST(Refusal, RankOverTheLimit) {
  AdapterFiles files;
  files.add_pair(kQ, 9, 16, 32);
  expect_refused(files, {kQ, "rank 9", "8 allowed"}, {.max_rank = 8});
  AdapterFiles halves;
  halves.add_pair(kExperts + ".0.gate_proj", 5, 16, 12);
  halves.add_pair(kExperts + ".0.up_proj", 4, 16, 12);
  expect_refused(halves, {"rank 9 together", "8 allowed"}, {.max_rank = 8});
  AdapterFiles experts;
  experts.add_pair(kExperts, 27, 16, 24);
  expect_refused(experts, {"rank 9", "8 allowed"}, {.max_rank = 8});
}

TEST(Refusal, Types) {
  for (const DType dtype : {DType::kF64, DType::kI8, DType::kF8E4M3, DType::kU8}) {
    AdapterFiles files = good();
    files.add_random(kQ + ".lora_B.weight", {32, 2}, dtype);
    expect_refused(files,
                   {kQ + ".lora_B.weight", std::string(dtype_name(dtype)), "F32, F16 or BF16"});
  }
}

TEST(Refusal, ValuesThatAreNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const float bad : {inf, -inf, nan}) {
      for (const char* half : {".lora_A.weight", ".lora_B.weight"}) {
        AdapterFiles files = good();
        const bool a = half == std::string(".lora_A.weight");
        std::vector<float> values(a ? 32 : 64, 0.5f);
        values.back() = bad;
        files.add(kQ + half, a ? Shape{2, 16} : Shape{32, 2}, values, dtype);
        expect_refused(files, {kQ + half, "not finite"});
      }
    }
  }
  // Beyond the largest bfloat16, though finite in float32.
  AdapterFiles large = good();
  large.add(kQ + ".lora_A.weight", {2, 16}, std::vector<float>(32, 3.4e38f), DType::kF32);
  expect_refused(large, {kQ + ".lora_A.weight", "not finite"});
}

TEST(Refusal, MagnitudesAndBiasesWhateverTheFlagsSay) {
  AdapterFiles dora = good();
  dora.add_random(kQ + ".lora_magnitude_vector", {32});
  expect_refused(dora, {"DoRA", kQ + ".lora_magnitude_vector"});
  AdapterFiles old = good();
  old.add_random(kQ + ".lora_magnitude_vector.weight", {32});
  expect_refused(old, {"DoRA"});
  AdapterFiles bias = good();
  bias.add_random(kQ + ".lora_B.bias", {32});
  expect_refused(bias, {"bias", kQ + ".lora_B.bias"});
  AdapterFiles full = good();
  full.add_random(kLayer + "self_attn.q_proj.bias", {32});
  expect_refused(full, {kLayer + "self_attn.q_proj.bias [32]"});
  AdapterFiles norm = good();
  norm.add_random(kLayer + "input_layernorm.weight", {16});
  expect_refused(norm, {kLayer + "input_layernorm.weight [16]"});
}

TEST(Refusal, FullWeightsAndResizedVocabularies) {
  AdapterFiles resized = good();
  resized.add_random("base_model.model.model.embed_tokens.weight", {104, 16});
  expect_refused(resized, {"embed_tokens.weight", "[104, 16]", "[40, 16]", "resized vocabulary"});
  AdapterFiles head = good();
  head.add_random("base_model.model.lm_head.weight", {40, 16});
  expect_refused(head, {"lm_head.weight", "fully trained modules"});
  AdapterFiles copy = good();
  copy.add_pair("base_model.model.lm_head", 2, 16, 104);
  copy.add_random("base_model.model.lm_head.base_layer.weight", {104, 16});
  expect_refused(copy, {"lm_head.base_layer.weight", "[104, 16]", "[40, 16]"});
  AdapterFiles pair;
  pair.add_random("base_model.model.model.embed_tokens.lora_embedding_A", {2, 104});
  pair.add_random("base_model.model.model.embed_tokens.lora_embedding_B", {16, 2});
  expect_refused(pair, {"lora_embedding_A", "[2, 104]", "[r, 40]"});
  AdapterFiles misplaced;
  misplaced.add_random(kQ + ".lora_embedding_A", {2, 32});
  misplaced.add_random(kQ + ".lora_embedding_B", {16, 2});
  expect_refused(misplaced, {"no embedding"});
}

TEST(Refusal, HarmlessConstantsAreIgnoredAloud) {
  AdapterFiles files = good();
  files.add_random(kLayer + "self_attn.rotary_emb.inv_freq", {8});
  const auto adapter = files.load(kTable);
  ASSERT_TRUE(adapter) << adapter.error().message;
  ASSERT_EQ((*adapter)->warnings.size(), 1u);
  EXPECT_NE((*adapter)->warnings[0].find("inv_freq"), std::string::npos);
}

TEST(Refusal, Folders) {
  const auto message = [](const std::string& folder) {
    return refusal(load_peft_adapter(folder, "x", kTable, {}));
  };
  const std::string missing = testing::TempDir() + "no_such_adapter";
  EXPECT_NE(message(missing).find("does not exist"), std::string::npos) << message(missing);
  EXPECT_NE(message(missing).find(missing), std::string::npos);
  const std::string empty = new_folder();
  EXPECT_NE(message(empty).find("no adapter_config.json"), std::string::npos);
  write_text(empty + "/adapter_config.json", good().config);
  EXPECT_NE(message(empty).find("no adapter_model.safetensors"), std::string::npos);
  write_text(empty + "/adapter_model.bin", "PK");
  EXPECT_NE(message(empty).find("pickles are not opened"), std::string::npos) << message(empty);
  EXPECT_NE(message(empty + "/adapter_config.json").find("expected a folder"), std::string::npos);
  write_text(empty + "/adapter_model.safetensors", "");
  EXPECT_FALSE(load_peft_adapter(empty, "x", kTable, {}));
}

TEST(Refusal, CutAndBrokenFiles) {
  const std::string folder = good().write();
  const std::string bytes = good().bytes();
  for (size_t size = 0; size < bytes.size(); size += 7) {
    write_text(folder + "/adapter_model.safetensors", bytes.substr(0, size));
    EXPECT_FALSE(load_peft_adapter(folder, "x", kTable, {})) << size;
  }
  std::string huge = bytes;
  huge.replace(0, 8, std::string(8, '\x7f'));
  write_text(folder + "/adapter_model.safetensors", huge);
  EXPECT_FALSE(load_peft_adapter(folder, "x", kTable, {}));
  AdapterFiles none;
  expect_refused(none, {"no LoRA tensors"});
}

TEST(Refusal, TrainerCheckpointsAndTokenizersAreFine) {
  const std::string folder = good().write();
  // None of these may be opened: a pickle, and JSON that is broken.
  for (const char* file : {"optimizer.pt", "scheduler.pt", "training_args.bin", "adapter_model.bin",
                           "rng_state.pth"}) {
    write_text(folder + "/" + file, "\x80\x04.");
  }
  write_text(folder + "/trainer_state.json", "{broken");
  write_text(folder + "/tokenizer.json", "{broken");
  write_text(folder + "/added_tokens.json", R"({"<|a|>": 39, "<|b|>": 0})");
  write_text(folder + "/tokenizer_config.json",
             R"({"added_tokens_decoder": {"39": {"content": "<|a|>"}}})");
  const auto adapter = load_peft_adapter(folder, "x", kTable, {});
  ASSERT_TRUE(adapter) << adapter.error().message;
  EXPECT_TRUE((*adapter)->warnings.empty());
  write_text(folder + "/added_tokens.json", R"({"<|new|>": 40})");
  const std::string added = refusal(load_peft_adapter(folder, "x", kTable, {}));
  EXPECT_NE(added.find("'<|new|>' with id 40"), std::string::npos) << added;
  write_text(folder + "/added_tokens.json", "{broken");
  write_text(folder + "/tokenizer_config.json",
             R"({"added_tokens_decoder": {"41": {"content": "<|c|>"}}})");
  const std::string decoder = refusal(load_peft_adapter(folder, "x", kTable, {}));
  EXPECT_NE(decoder.find("'<|c|>' with id 41"), std::string::npos) << decoder;
}

TEST(Refusal, TheBaseModelsNameIsNeverLookedUp) {
  for (const char* name :
       {"null", "\"./nope\"", "\"private-org/gated-model\"", "\"openai/gpt-oss-20b\""}) {
    AdapterFiles files = good();
    files.config = config_with(fmt::format(R"("base_model_name_or_path": {})", name));
    const auto adapter = files.load(kTable);
    ASSERT_TRUE(adapter) << adapter.error().message;
  }
}

}  // namespace
}  // namespace lk
