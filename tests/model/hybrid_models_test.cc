// The small Qwen3.6 and Nemotron-3 of models/ against references that Transformers and PEFT made of
// their dequantized weights: the base and both adapters in one batch; and faults that these tests
// must see.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/reference/primitives.h"
#include "kernels/reference/recurrent.h"
#include "tests/model/agreement.h"
#include "tests/model/harness.h"
#include "tests/model/passing_kernels.h"

namespace lk::test {
namespace {

const std::string kQwen = "tiny-qwen3.6-fp8", kNemotron = "tiny-nemotron-nvfp4";

class HybridModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_EQ(model_.cases().size(), 25u); }

  Fixture fixture_ = hybrid_model(GetParam());
  Agreement model_{fixture_};
};

TEST_P(HybridModel, AgreesWithTransformers) { model_.expect_agrees(); }

TEST_P(HybridModel, RoundedActivationsStayNear) { model_.expect_rounded_activations_stay_near(); }

TEST_P(HybridModel, SameBitsAloneAndInChunks) {
  for (const std::string& row : every_row()) {
    model_.keep_some_cases(row == "reference" ? 1 : 3);  // slow
    model_.expect_same_bits(row);
  }
}

// Within what AgreesWithTransformers allows of fast kernels; of the reference it allows far less.
bool within_tolerance(const Deviation& d) { return d.mean() <= 0.01 && d.quantile(0.99) <= 0.1; }

// Faults of recurrent mixers: computed here from the stages below them.
enum class Fault { kNone, kConvolution, kDecay, kGate };

class FaultyMixers : public PassingKernels {
 public:
  FaultyMixers(std::unique_ptr<Kernels> inner, Fault fault)
      : PassingKernels(std::move(inner)), fault_(fault) {}

  void delta_net(const Batch& batch, const DeltaNetArgs& args) override {
    const int64_t values = int64_t{args.value_heads} * args.value_dim;
    const int64_t channels = 2 * int64_t{args.key_heads} * args.key_dim + values;
    const std::vector<float> x = normed(batch, args.residual, args.norm);
    std::vector<float> u = projected(batch, x, args.qkv, channels);
    std::vector<float> z = projected(batch, x, args.z, values);
    std::vector<float> a = projected(batch, x, args.a, args.value_heads);
    const std::vector<float> b = projected(batch, x, args.b, args.value_heads);
    if (fault_ == Fault::kDecay) delay(batch, a.data(), args.value_heads, args.value_heads);
    if (fault_ == Fault::kGate) open(z.data(), z.size(), 1, 1);
    reference::delta_net(pool_, batch, args, u.data(), z.data(), a.data(), b.data());
    if (fault_ == Fault::kConvolution) shift(batch, args.state, args.kernel, channels);
  }

  void mamba(const Batch& batch, const MambaArgs& args) override {
    const int64_t inner = int64_t{args.heads} * args.head_dim;
    const int64_t channels = inner + 2 * int64_t{args.groups} * args.state_dim;
    const int64_t rows = inner + channels + args.heads;
    const std::vector<float> x = normed(batch, args.residual, args.norm);
    std::vector<float> all = projected(batch, x, args.in, rows);
    if (fault_ == Fault::kDecay) delay(batch, &all[inner + channels], args.heads, rows);
    if (fault_ == Fault::kGate) open(all.data(), batch.tokens, inner, rows);
    reference::mamba(pool_, batch, args, all.data());
    if (fault_ == Fault::kConvolution) shift(batch, args.state, args.kernel, channels);
  }

 private:
  static constexpr int kHidden = 192;

  static std::vector<float> normed(const Batch& batch, const float* residual, const Norm& norm) {
    std::vector<float> x(size_t{1} * batch.tokens * kHidden);
    for (int t = 0; t < batch.tokens; ++t)
      reference::rms_norm(residual + t * kHidden, norm, kHidden, &x[t * kHidden]);
    return x;
  }
  std::vector<float> projected(const Batch& batch, const std::vector<float>& x,
                               const Linear& linear, int64_t rows) {
    std::vector<float> out(batch.tokens * rows);
    inner_->project(batch, {.x = x.data(), .linear = linear, .out = out.data()});
    return out;
  }
  // Each token of a sequence's step gets the value of the one before it.
  static void delay(const Batch& batch, float* values, int64_t count, int64_t stride) {
    for (int s = 0; s < batch.sequences; ++s) {
      for (int t = batch.query_start[s + 1] - 1; t > batch.query_start[s]; --t)
        std::copy_n(values + (t - 1) * stride, count, values + t * stride);
    }
  }
  // SiLU of it is 1.
  static void open(float* gate, int64_t tokens, int64_t count, int64_t stride) {
    for (int64_t t = 0; t < tokens; ++t) std::fill_n(gate + t * stride, count, 1.2784645f);
  }
  // What the convolution remembers is one token off.
  static void shift(const Batch& batch, const StateLayer& state, int kernel, int64_t channels) {
    for (int s = 0; s < batch.sequences; ++s) {
      float* rows = state.conv + batch.state_slot[s] * (kernel - 1) * channels;
      std::copy(rows + channels, rows + (kernel - 1) * channels, rows);
    }
  }

  Fault fault_;
  ThreadPool pool_{1};
};

TEST_P(HybridModel, FaultsOfMixersShow) {
  model_.keep_some_cases(2);
  const auto with = [&](Fault fault) {
    const auto model = model_.load({.wrap = [&](std::unique_ptr<Kernels> inner) {
      return std::make_unique<FaultyMixers>(std::move(inner), fault);
    }});
    return model_.deviation_of(*model);
  };
  EXPECT_LE(with(Fault::kNone).largest(), 1e-3) << "without a fault";
  const std::pair<Fault, const char*> kFaults[] = {
      {Fault::kConvolution, "the convolution's inputs one token off"},
      {Fault::kDecay, "the decay one token late"},
      {Fault::kGate, "the mixer's gate off"}};
  for (const auto& [fault, name] : kFaults) {
    const Deviation d = with(fault);
    fmt::print("{}, {}: {}\n", GetParam(), name, d.text());
    EXPECT_FALSE(within_tolerance(d)) << name;
  }
}

class NoAttentionGate : public PassingKernels {
 public:
  using PassingKernels::PassingKernels;
  void attention(const Batch& batch, const AttentionArgs& args) override {
    AttentionArgs open = args;
    open.gate = nullptr;
    inner_->attention(batch, open);
  }
};

TEST_P(HybridModel, OtherFaultsShow) {
  model_.keep_some_cases(3);
  const std::string row = every_row().front();
  const auto expect_caught = [&](const char* name, LoadHooks hooks) {
    hooks.kernels = row;
    hooks.kv_type = KvType::kBF16;
    const Deviation d = model_.deviation_of(*model_.load(hooks));
    fmt::print("{}, {}: {}\n", GetParam(), name, d.text());
    EXPECT_FALSE(within_tolerance(d)) << name;
  };
  const auto expect_moe_fault_caught = [&](const char* name, void (*edit)(MoeSpec&)) {
    expect_caught(name, {.edit = [edit](DecoderSpec& spec) {
                    for (LayerSpec& layer : spec.layers) {
                      if (layer.moe) edit(*layer.moe);
                    }
                  }});
  };
  ASSERT_TRUE(within_tolerance(
      model_.deviation_of(*model_.load({.kernels = row, .kv_type = KvType::kBF16}))));
  expect_moe_fault_caught("shared expert off", [](MoeSpec& moe) { moe.shared.reset(); });
  if (GetParam() == kQwen) {
    expect_moe_fault_caught("shared expert's gate off",
                            [](MoeSpec& moe) { moe.shared->gated_output = false; });
    expect_moe_fault_caught("top-k not normalised",
                            [](MoeSpec& moe) { moe.rule = RouterRule::kSoftmaxThenTopK; });
    expect_caught("attention's gate off", {.wrap = [](std::unique_ptr<Kernels> inner) {
                    return std::make_unique<NoAttentionGate>(std::move(inner));
                  }});
    expect_caught("positions turn all dims",
                  {.edit = [](DecoderSpec& spec) { spec.rope = default_rope(64, 10000); }});
  } else {
    expect_moe_fault_caught("top-k not normalised", [](MoeSpec& moe) { moe.normalized = false; });
    expect_moe_fault_caught("weights not scaled", [](MoeSpec& moe) { moe.weight_scale = 1; });
    expect_moe_fault_caught("correction bias ignored",
                            [](MoeSpec& moe) { moe.correction.clear(); });
    expect_caught("attention knows positions",
                  {.edit = [](DecoderSpec& spec) { spec.rope = default_rope(64, 10000); }});
  }
}

TEST_P(HybridModel, FaultsOfAdaptersShow) {
  model_.keep_some_cases(3);
  model_.keep_adapter("sql");
  const auto model =
      load_model({.kernels = every_row().front(), .kv_type = KvType::kBF16}, fixture_);
  const Adapter whole = load_adapter(*model, "sql", fixture_);
  std::vector<Stage> stages;
  for (const AdapterModule& module : whole.modules) {
    if (std::find(stages.begin(), stages.end(), module.spec->stage) == stages.end())
      stages.push_back(module.spec->stage);
  }
  // q, k, v, o, both expert matrices, and what PEFT lets one adapt of the mixers.
  ASSERT_EQ(stages.size(), GetParam() == kQwen ? 9u : 7u);
  for (const Stage stage : stages) {
    Adapter spoilt = whole;
    std::erase_if(spoilt.modules, [&](const AdapterModule& m) { return m.spec->stage == stage; });
    bind(*model, 0, spoilt);
    const Deviation d = model_.deviation_of(*model);
    fmt::print("{}, sql off at {}: {}\n", GetParam(), stage_name(stage), d.text());
    EXPECT_FALSE(within_tolerance(d)) << stage_name(stage);
  }
  Adapter weak = whole;
  for (AdapterModule& module : weak.modules) {
    for (LoraPair& pair : module.experts) pair.scale *= 0.9f;
  }
  bind(*model, 0, weak);
  EXPECT_FALSE(within_tolerance(model_.deviation_of(*model))) << "scale x 0.9";
}

INSTANTIATE_TEST_SUITE_P(Models, HybridModel, testing::Values(kQwen, kNemotron),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace lk::test
