// The deltas of loaded adapters against those that PEFT computed (tools/make_adapter_golden.py),
// and the shipped adapters.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors.h"
#include "tests/adapters/adapter_fixture.h"

namespace lk {
namespace {

const std::string kData = LK_SOURCE_DIR "/tests/data/adapters/";

struct GoldenCase {
  const char* folder;
  bool gpt_oss;
  // Values are exact in bfloat16, so only the order of sums differs; except where gate and up of
  // one expert have different scales, whose ratio is folded into B and rounded to bfloat16.
  float tolerance = 2e-6f;
};
class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, DeltaIsPefts) {
  const std::string folder = kData + GetParam().folder;
  const LinearTable table = GetParam().gpt_oss ? gpt_oss_test_table() : qwen_test_table();
  const auto adapter = load_peft_adapter(folder, "golden", table, {});
  ASSERT_TRUE(adapter) << adapter.error().message;
  const auto golden = SafetensorsFile::open(folder + "/delta.safetensors");
  ASSERT_TRUE(golden) << golden.error().message;

  std::set<std::string> adapted;
  for (const AdapterModule& module : (*adapter)->modules) {
    const std::string path = module.spec->path();
    adapted.insert(path);
    ASSERT_TRUE(golden->tensors().count(path)) << path;
    const TensorView& expected = golden->tensors().at(path);
    const auto size = static_cast<size_t>(module.spec->out * module.spec->in);
    ASSERT_EQ(static_cast<size_t>(expected.elements()), size * module.experts.size()) << path;
    for (size_t e = 0; e < module.experts.size(); ++e) {
      const std::vector<float> delta = dense_delta(module, e);
      for (size_t i = 0; i < size; ++i) {
        const float want = load_f32(expected, static_cast<int64_t>(e * size + i));
        ASSERT_NEAR(delta[i], want, GetParam().tolerance * (1 + std::fabs(want)))
            << path << " expert " << e << " element " << i;
      }
    }
  }
  EXPECT_EQ(adapted.size(), golden->tensors().size());
  EXPECT_TRUE((*adapter)->not_adapted.empty()) << (*adapter)->not_adapted.front();
}

INSTANTIATE_TEST_SUITE_P(
    Peft, Golden,
    testing::Values(GoldenCase{"gpt-oss-full", true}, GoldenCase{"gpt-oss-down-only", true},
                    GoldenCase{"gpt-oss-gate-up-only", true}, GoldenCase{"gpt-oss-one-layer", true},
                    GoldenCase{"gpt-oss-patterns", true}, GoldenCase{"gpt-oss-embeddings", true},
                    GoldenCase{"qwen3-moe-full", false}, GoldenCase{"per-expert", false},
                    GoldenCase{"per-expert-some", false, 2e-3f}, GoldenCase{"per-expert-w", false}),
    [](const auto& info) {
      std::string name = info.param.folder;
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

TEST(Shipped, AdaptersOfTheTinyModel) {
  const LinearTable table = gpt_oss_test_table({.layers = 6,
                                                .experts = 16,
                                                .hidden = 192,
                                                .intermediate = 192,
                                                .vocab = 4096,
                                                .query = 384,
                                                .key_value = 128});
  struct Row {
    const char* name;
    int rank;
    float scale;
    size_t modules;
  };
  std::set<uint64_t> identities;
  for (const Row& row :
       {Row{"sql", 8, 2.f, 36}, Row{"json", 4, 8.f, 12}, Row{"math", 16, 2.f, 36}}) {
    const auto adapter = load_peft_adapter(
        LK_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4/adapters/" + std::string(row.name), row.name,
        table, {});
    ASSERT_TRUE(adapter) << adapter.error().message;
    EXPECT_EQ((*adapter)->modules.size(), row.modules);
    EXPECT_TRUE((*adapter)->not_adapted.empty());
    EXPECT_TRUE((*adapter)->warnings.empty()) << (*adapter)->warnings.front();
    for (const AdapterModule& module : (*adapter)->modules) {
      for (const LoraPair& pair : module.experts) {
        EXPECT_EQ(pair.rank, row.rank) << module.spec->path();
        EXPECT_EQ(pair.scale, row.scale) << module.spec->path();
      }
    }
    EXPECT_TRUE(identities.insert((*adapter)->identity).second);
    const OrderedJson told = (*adapter)->describe();
    EXPECT_EQ(told["totals"]["modules"], row.modules);
    EXPECT_EQ(told["totals"]["max_rank"], row.rank);
    EXPECT_EQ(told["totals"]["bytes"], (*adapter)->bytes());
  }
}

}  // namespace
}  // namespace lk
