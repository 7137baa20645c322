// The small Qwen3.6 and Nemotron-3 of models/ against references that Transformers and PEFT made of
// their dequantized weights: the base and both adapters in one batch; and faults that these tests
// must see.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/harness.h"

namespace lk::test {
namespace {

constexpr const char* kQwen = "tiny-qwen3.6-fp8";
constexpr const char* kNemotron = "tiny-nemotron-nvfp4";

class HybridModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fixture_ = hybrid_model(GetParam());
    cases_ = reference_cases(fixture_);
    sequences_ = sequences_of(cases_, fixture_);
    ASSERT_EQ(cases_.size(), 25u);
  }

  std::unique_ptr<Model> load(LoadHooks hooks) const {
    auto model = load_model(hooks, fixture_);
    bind_all(*model, fixture_);
    return model;
  }
  Deviation deviation_of(Model& model, const RunOptions& options = {.seed = 3, .steps = 5}) const {
    return deviation(cases_, run(model, sequences_, options), model.info().vocab);
  }

  Fixture fixture_;
  std::vector<ReferenceCase> cases_;
  std::vector<Sequence> sequences_;
};

TEST_P(HybridModel, AgreesWithTransformers) {
  const auto reference = load({});
  EXPECT_TRUE(reference->info().warnings.empty()) << reference->info().warnings.front();
  const auto runs = run(*reference, sequences_, {.seed = 4, .steps = 3});
  const int vocab = reference->info().vocab;
  const Deviation exact = deviation(cases_, runs, vocab);
  fmt::print("{}, reference: {}\n", GetParam(), exact.text());
  EXPECT_LE(exact.largest(), 1e-3);
  for (size_t i = 0; i < cases_.size(); ++i)
    EXPECT_EQ(first_greedy_difference(cases_[i], runs[i], vocab, 0.01), -1) << i;
  for (const std::string& row : fast_rows()) {
    const auto model = load({.kernels = row, .kv_type = KvType::kBF16});
    const Deviation free = deviation_of(*model);
    const Deviation forced = deviation_of(*model, {.seed = 5, .steps = 2, .forced = &runs});
    fmt::print("{}, {}: {}; experts replayed: {}\n", GetParam(), row, free.text(), forced.text());
    EXPECT_LE(forced.largest(), 0.25);
    // A row that rounds activations to bfloat16 runs by name only, and may be further off.
    if (row == "avx512bf16") continue;
    EXPECT_LE(free.mean(), 0.01);
    EXPECT_LE(free.quantile(0.99), 0.1);
  }
}

std::string test_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, HybridModel, testing::Values(kQwen, kNemotron), test_name);

}  // namespace
}  // namespace lk::test
