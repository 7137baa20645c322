#include "cli/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/cli/process.h"

namespace lk {
namespace {

TEST(Inspect, ReportsWhatTheModelIsMadeOf) {
  const ProcessResult result =
      run_lorikeet({"inspect", tiny_model(), "--lora", tiny_adapter("sql"), "--lora",
                    tiny_adapter("math"), "--max-lora-rank", "8", "--json"});
  EXPECT_EQ(result.code, 1) << result.err;  // one adapter does not fit
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report["architecture"], "gpt_oss");
  EXPECT_EQ(report["sizes"]["layers"], 6);
  EXPECT_EQ(report["sizes"]["experts"], 16);
  EXPECT_EQ(report["sizes"]["head_dim"], 64);
  size_t bytes = 0;
  bool experts = false;
  for (const Json& group : report["tensors"]) {
    bytes += group["bytes"].get<size_t>();
    if (group["stage"] != "expert_up") continue;
    experts = true;
    EXPECT_EQ(group["format"], "mxfp4");
    EXPECT_EQ(group["count"], 6);
    EXPECT_EQ(group["shape"], Json::array({16, 384, 192}));
    // Codes of half a byte, a scale for 32 weights, a bfloat16 bias.
    EXPECT_EQ(group["bytes"], 6 * 16 * 384 * (192 / 2 + 192 / 32 + 2));
  }
  EXPECT_TRUE(experts);
  const Json& memory = report["memory"];
  EXPECT_EQ(memory["linear_bytes"], bytes);
  EXPECT_EQ(memory["weight_bytes"], bytes + memory["other_bytes"].get<size_t>());
  EXPECT_EQ(memory["kv_bytes_per_token"],
            3 * 2 * 2 * 64 * 2);  // full layers, keys and values, heads, dims, bytes
  EXPECT_EQ(memory["kv_groups"].size(), 2u);
  int chosen = 0;
  for (const Json& row : report["kernels"]) {
    chosen += row["chosen"].get<bool>();
    EXPECT_FALSE(row["reason"].get<std::string>().empty());
    EXPECT_TRUE(!row["chosen"].get<bool>() || row["supported"].get<bool>());
  }
  EXPECT_EQ(chosen, 1);
  ASSERT_EQ(report["adapters"].size(), 2u);
  EXPECT_EQ(report["adapters"][0]["fits"], true);
  EXPECT_EQ(report["adapters"][0]["totals"]["modules"], 36);
  EXPECT_EQ(memory["adapter_bytes"], report["adapters"][0]["totals"]["bytes"]);
  EXPECT_EQ(report["adapters"][1]["fits"], false);
  EXPECT_NE(report["adapters"][1]["error"].get<std::string>().find("rank 16"), std::string::npos);
  EXPECT_EQ(report["tokenizer"], (OrderedJson{{"found", true}, {"ids", 4096}}));
  EXPECT_EQ(report["chat_template"], (OrderedJson{{"found", true}}));
}

TEST(Inspect, TextNamesTheSameThings) {
  const ProcessResult result = run_lorikeet(
      {"inspect", tiny_model(), "--lora", tiny_adapter("math"), "--kernels", "reference"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part : {"gpt_oss", "expert_down", "mxfp4", "KV cache", "* reference",
                           "math: fits", "see 128 tokens"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

TEST(Inspect, AKvCacheInF32IsTwiceAsLarge) {
  InspectOptions options;
  options.model.model = tiny_model();
  const auto narrow = inspect_report(options);
  options.model.kv_type = KvType::kF32;
  const auto wide = inspect_report(options);
  ASSERT_TRUE(narrow && wide);
  EXPECT_EQ(2 * (*narrow)["memory"]["kv_bytes_per_token"].get<size_t>(),
            (*wide)["memory"]["kv_bytes_per_token"].get<size_t>());
}

TEST(Inspect, WhatIsNoModel) {
  for (const std::string& folder :
       {std::string("/no/such/folder"), std::string(LK_SOURCE_DIR) + "/docs"}) {
    const ProcessResult result = run_lorikeet({"inspect", folder});
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.err.rfind("lorikeet: ", 0), 0u);
    EXPECT_EQ(result.out, "");
  }
}

TEST(Inspect, AnAdapterThatCannotBeReadIsRefused) {
  const std::string broken = temporary_model();  // any folder
  std::ofstream(broken + "/adapter_config.json") << "{";
  std::filesystem::copy(tiny_model() + "/adapters/sql/adapter_model.safetensors", broken);
  for (const std::string& folder : {std::string("/no/such/folder"), broken}) {
    const ProcessResult result = run_lorikeet({"inspect", tiny_model(), "--lora", folder});
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err.rfind("lorikeet: ", 0), 0u) << result.err;
    EXPECT_NE(result.err.find(folder), std::string::npos) << result.err;
  }
}

TEST(Inspect, TokenizerAndTemplateAreChecked) {
  const std::string model = temporary_model();
  std::ofstream(model + "/tokenizer.json") << "{}";
  std::ofstream(model + "/chat_template.jinja") << "{% for %}";
  const ProcessResult broken = run_lorikeet({"inspect", model});
  EXPECT_EQ(broken.code, 1);
  EXPECT_EQ(std::count(broken.err.begin(), broken.err.end(), '\n'), 2) << broken.err;
  EXPECT_NE(broken.out.find("tokenizer      cannot be used: "), std::string::npos) << broken.out;
  EXPECT_NE(broken.out.find("chat template  cannot be used: chat_template.jinja"),
            std::string::npos)
      << broken.out;
  for (const char* file : {"tokenizer.json", "chat_template.jinja"})
    std::filesystem::remove(model + "/" + file);
  const ProcessResult missing = run_lorikeet({"inspect", model});
  EXPECT_NE(missing.out.find("tokenizer      none"), std::string::npos) << missing.out;
  EXPECT_NE(missing.out.find("chat template  none"), std::string::npos) << missing.out;
  // serve starts without a template, but not without a tokenizer.
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(std::count(missing.err.begin(), missing.err.end(), '\n'), 1) << missing.err;
  std::filesystem::copy(tiny_model() + "/tokenizer.json", model);
  EXPECT_EQ(run_lorikeet({"inspect", model}).code, 0);
}

// One sentence from both, so that inspect tells whether a model will start.
TEST(Inspect, SaysWhatServeWouldSay) {
  const std::pair<const char*, const char*> cases[] = {
      {"tokenizer.json", "{}"},
      {"tokenizer.json", "{\"model\": "},
      {"tokenizer.json", nullptr},
      {"generation_config.json", "{\"temperature\": \"hot\"}"},
      {"generation_config.json", "[]"}};
  for (const auto& [file, text] : cases) {
    const std::string model = temporary_model();
    std::filesystem::remove(model + "/" + file);
    if (text != nullptr) std::ofstream(model + "/" + file) << text;
    const ProcessResult inspected = run_lorikeet({"inspect", model});
    const ProcessResult served = run_lorikeet({"serve", model, "--port", "0"});
    EXPECT_GT(inspected.code, 0) << file;
    EXPECT_GT(served.code, 0) << file;
    EXPECT_EQ(inspected.err, served.err) << file;
    EXPECT_NE(served.err.find(file), std::string::npos) << served.err;
  }
}

}  // namespace
}  // namespace lk
