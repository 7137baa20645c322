// Qwen3-MoE, OLMoE and Mixtral, in bfloat16 and quantized, against references that Transformers and
// PEFT made of small seeded models (tools/make_small_models.py): the base and adapters on
// attention, experts and router in one batch; and faults that these tests must see.
#include <gtest/gtest.h>

#include <set>

#include "tests/model/agreement.h"

namespace lk::test {
namespace {

class SmallModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(model_.cases().size(), 16u); }

  Agreement model_{small_model(GetParam())};
};

class QuantizedModel : public SmallModel {};

TEST_P(SmallModel, AgreesWithTransformers) { model_.expect_agrees(); }

TEST_P(QuantizedModel, RoundedActivationsStayNear) {
  model_.expect_rounded_activations_stay_near();
}

TEST_P(SmallModel, SameBitsAloneAndInChunks) {
  for (const std::string& row : every_row()) model_.expect_same_bits(row);
}

// Qwen3.5 and Nemotron-H with one adapter on every linear that PEFT lets one adapt: a, b, both
// gates, routers, shared experts and the latent projections too, which the trained models' adapters
// leave alone. Nemotron's routes by groups and works in a latent space.
class SeededHybrid : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(model_.cases().size(), 8u); }

  Fixture fixture_ = small_model(GetParam());
  Agreement model_{fixture_};
};

TEST_P(SeededHybrid, AgreesWithTransformers) { model_.expect_agrees(/*rows_that_round=*/false); }

TEST_P(SeededHybrid, SameBitsAloneAndInChunks) {
  for (const std::string& row : every_row()) model_.expect_same_bits(row);
}

TEST_P(SeededHybrid, AnAdapterOffAtOneSeamShows) {
  model_.keep_adapter("all");
  const auto model = load_model({}, fixture_);
  const Adapter whole = load_adapter(*model, "all", fixture_);
  std::set<Stage> stages;
  for (const AdapterModule& module : whole.modules) stages.insert(module.spec->stage);
  EXPECT_EQ(stages.size(), GetParam() == "qwen3_5_moe" ? 15u : 12u);
  for (const Stage stage : stages) {
    Adapter part = whole;
    std::erase_if(part.modules, [&](const AdapterModule& m) { return m.spec->stage == stage; });
    bind(*model, 0, part);
    const Deviation d = model_.deviation_of(*model);
    fmt::print("{}, off at {}: {}\n", GetParam(), stage_name(stage), d.text());
    EXPECT_GT(d.largest(), 5e-3) << stage_name(stage);
  }
}

// What each fault does to the reference kernels' agreement.
TEST_P(SmallModel, PlantedFaultsShow) {
  const auto faulty = [&](const std::function<void(DecoderSpec&)>& edit) {
    const auto model = model_.load({.edit = edit});
    return model_.deviation_of(*model).largest();
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

const auto name_of = [](const testing::TestParamInfo<std::string>& info) {
  return test_name(info.param);
};

INSTANTIATE_TEST_SUITE_P(Archs, SmallModel,
                         testing::Values("qwen3_moe", "olmoe", "mixtral", "qwen3_moe-fp8",
                                         "olmoe-fp8-dynamic", "mixtral-nvfp4"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Archs, QuantizedModel,
                         testing::Values("qwen3_moe-fp8", "olmoe-fp8-dynamic", "mixtral-nvfp4"),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Archs, SeededHybrid, testing::Values("qwen3_5_moe", "nemotron_h"),
                         name_of);

}  // namespace
}  // namespace lk::test
