// Qwen3-MoE, OLMoE and Mixtral, in bfloat16 and quantized, against references that Transformers and
// PEFT made of small seeded models (tools/make_small_models.py): the base and adapters on
// attention, experts and router in one batch; and faults that these tests must see.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/harness.h"

namespace lk::test {
namespace {

class SmallModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fixture_ = small_model(GetParam());
    cases_ = reference_cases(fixture_);
    sequences_ = sequences_of(cases_, fixture_);
    ASSERT_EQ(cases_.size(), 16u);
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

class QuantizedModel : public SmallModel {};

TEST_P(SmallModel, AgreesWithTransformers) {
  const auto reference = load({});
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

// Activations rounded to 8 bits inside the experts, the adapters reading what they were before.
TEST_P(QuantizedModel, RoundedActivationsStayNear) {
  const auto runs = run(*load({}), sequences_, {.seed = 4, .steps = 3});
  for (const std::string& row : fast_rows()) {
    const auto model = load({.kernels = row,
                             .kv_type = KvType::kBF16,
                             .moe = {.backend = "", .activations = ActivationPrecision::k8Bit}});
    const Deviation forced = deviation_of(*model, {.seed = 5, .steps = 2, .forced = &runs});
    fmt::print("{}, {}, 8-bit activations, experts replayed: {}\n", GetParam(), row, forced.text());
    EXPECT_LE(forced.mean(), 0.03);
    EXPECT_LE(forced.quantile(0.99), 0.3);
    EXPECT_LE(forced.largest(), 0.5);
    EXPECT_GT(forced.mean(), 1e-4) << "nothing was rounded";
  }
}

TEST_P(SmallModel, SameBitsAloneAndInChunks) {
  const auto model = load({.kernels = fast_rows().empty() ? "reference" : fast_rows().front(),
                           .kv_type = KvType::kBF16});
  const auto together = run(*model, sequences_, {.seed = 6, .steps = 6});
  for (size_t i = 0; i < sequences_.size(); i += 3) {
    const auto alone = run(*model, {sequences_[i]});
    EXPECT_TRUE(same_bits(alone[0].logits, together[i].logits)) << i;
  }
}

// What each fault does to the reference kernels' agreement.
TEST_P(SmallModel, PlantedFaultsShow) {
  const auto faulty = [&](const std::function<void(DecoderSpec&)>& edit) {
    const auto model = load({.edit = edit});
    return deviation_of(*model).largest();
  };
  EXPECT_GT(faulty([](DecoderSpec& spec) {
              for (LayerSpec& layer : spec.layers) {
                RouterRule& rule = layer.moe->rule;
                rule = rule == RouterRule::kTopKThenSoftmax ? RouterRule::kSoftmaxThenTopK
                                                            : RouterRule::kTopKThenSoftmax;
              }
            }),
            0.05)
      << "weights of the experts normalized the other way";
  EXPECT_GT(faulty([](DecoderSpec& spec) {
              for (LayerSpec& layer : spec.layers) {
                layer.moe->activation = Activation::kClampedSwiGlu;
                layer.moe->alpha = 1;
                layer.moe->limit = 1e6f;
              }
            }),
            0.05)
      << "another activation function";
  if (!GetParam().starts_with("mixtral")) {
    EXPECT_GT(faulty([](DecoderSpec& spec) {
                for (LayerSpec& layer : spec.layers) {
                  layer.attention->query_norm.clear();
                  layer.attention->key_norm.clear();
                }
              }),
              0.05)
        << "norms of q and k left out";
  }
  if (GetParam().starts_with("olmoe")) {
    EXPECT_GT(faulty([](DecoderSpec& spec) {
                for (LayerSpec& layer : spec.layers) layer.attention->clip = 0;
              }),
              0.05)
        << "q, k and v not clipped";
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Archs, SmallModel,
                         testing::Values("qwen3_moe", "olmoe", "mixtral", "qwen3_moe-fp8",
                                         "olmoe-fp8-dynamic", "mixtral-nvfp4"),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Archs, QuantizedModel,
                         testing::Values("qwen3_moe-fp8", "olmoe-fp8-dynamic", "mixtral-nvfp4"),
                         test_name);

}  // namespace
}  // namespace lk::test
