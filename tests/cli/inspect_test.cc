#include "cli/inspect.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/cli/process.h"

namespace lk {
namespace {

TEST(Inspect, ReportsWhatTheModelIsMadeOf) {
  const ProcessResult result = run_lorikeet({"inspect", tiny_model(), "--lora", tiny_adapter("sql"),
                                             "--lora", "bad=/no/such/folder", "--json"});
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
  EXPECT_NE(report["adapters"][1]["error"].get<std::string>().find("/no/such/folder"),
            std::string::npos);
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

}  // namespace
}  // namespace lk
