// Layer groups and the start matrix on the shipped model: every backend, with LoRA off, enabled,
// used; what cannot be is refused in one sentence, and adapters never swap a kernel.
#include "model/moe_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/select.h"
#include "tests/model/harness.h"

namespace lk::test {
namespace {

Result<std::unique_ptr<Model>> load(const std::string& kernels, const MoeOptions& moe) {
  ModelOptions options;
  options.kernels = kernels;
  options.moe = moe;
  options.threads = 1;
  return Model::load(model_folder(), options);
}

MoeOptions named(const std::string& backend, bool lora) {
  MoeOptions options;
  options.backend = backend;
  options.lora = lora;
  options.max_rank = 256;
  return options;
}

TEST(MoePlan, GroupsAreNamedWithReasons) {
  auto model = load("reference", {});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_EQ((*model)->info().moe_plan.size(), 1u);
  EXPECT_EQ((*model)->info().moe_plan[0],
            "layers 0-5: mxfp4 experts on reference; not cpu-w4a8: rounds activations to int8: by "
            "--activations 8bit or by name only; not cpu-w8a8: does not take mxfp4 weights; not "
            "cpu-w8a8-int8: does not take mxfp4 weights; not cpu-w16: does not run on the "
            "reference kernels");
}

TEST(MoePlan, RefusalNamesLayersAndCapability) {
  const auto model = load("reference", named("cpu-w8a8", true));
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().message,
            "layers 0-5 (mxfp4 experts): --moe-backend cpu-w8a8 does not take mxfp4 weights");
  const auto unknown = load("reference", named("marlin", true));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().message.find("there is no --moe-backend 'marlin'"), 0u);
}

std::vector<std::string> backends_on(const std::string& kernels) {
  std::vector<std::string> names;
  for (const MoeBackend& backend : moe_backends()) {
    const bool takes = backend.not_on != kernels && same_device(backend, kernels);
    const bool e2m1 = std::find(backend.elements.begin(), backend.elements.end(), Element::kE2M1) !=
                      backend.elements.end();
    if (takes && e2m1 && !backend.form.plain_loops) names.emplace_back(backend.name);
  }
  return names;
}

class EveryBackend : public testing::TestWithParam<std::string> {};

// The answers of base and adapters in one batch with 8-bit activations in the experts.
TEST_P(EveryBackend, EightBitActivationsStayNearTheReference) {
  const std::vector<ReferenceCase> cases = reference_cases();
  const std::vector<Sequence> sequences = sequences_of(cases);
  static const std::vector<SequenceRun> reference_runs = [&] {
    const auto reference = load_model();
    bind_all(*reference);
    return run(*reference, sequences, {.seed = 33, .steps = 4});
  }();
  const auto exact = load_model({.kernels = GetParam(), .kv_type = KvType::kBF16});
  MoeOptions eight_bit;
  eight_bit.activations = ActivationPrecision::k8Bit;
  const auto model =
      load_model({.kernels = GetParam(), .kv_type = KvType::kBF16, .moe = eight_bit});
  bind_all(*exact);
  bind_all(*model);
  ASSERT_NE(model->info().moe_plan[0].find("on cpu-w4a8"), std::string::npos);
  const int vocab = model->info().vocab;
  const auto unquantized = run(*exact, sequences, {.seed = 30, .steps = 4});
  const Deviation free = deviation(cases, run(*model, sequences, {.seed = 31, .steps = 4}), vocab);
  const Deviation forced = deviation(
      cases, run(*model, sequences, {.seed = 32, .steps = 4, .forced = &reference_runs}), vocab);
  fmt::print("{}, cpu-w4a8: {}\n{}, cpu-w4a8, experts replayed: {}\n", GetParam(), free.text(),
             GetParam(), forced.text());
  EXPECT_LE(free.mean(), 0.03);
  EXPECT_LE(free.quantile(0.99), 0.3);
  EXPECT_LE(forced.largest(), 0.5);
  // Not the unquantized kernels under another name.
  EXPECT_GT(free.mean(), deviation(cases, unquantized, vocab).mean() * 1.05);
}

// LoRA off, enabled without an adapter, and used: the same backend and the same bits of the base.
TEST_P(EveryBackend, AdaptersChangeNothingForTheBase) {
  std::vector<Sequence> base;
  for (const Sequence& s : sequences_of(reference_cases())) {
    if (s.slot < 0) base.push_back(s);
  }
  base.resize(3);
  for (const std::string& backend : backends_on(GetParam())) {
    const auto off = load_model({.kernels = GetParam(), .moe = named(backend, false)});
    const auto on = load_model({.kernels = GetParam(), .moe = named(backend, true)});
    EXPECT_EQ(off->info().moe_plan, on->info().moe_plan);
    const auto without = run(*off, base);
    const auto enabled = run(*on, base);
    bind_all(*on);
    std::vector<Sequence> mixed = base;
    for (int slot = 0; slot < 3; ++slot) mixed.push_back({base[slot].tokens, slot});
    const auto used = run(*on, mixed);
    for (size_t i = 0; i < base.size(); ++i) {
      EXPECT_TRUE(same_bits(without[i].logits, enabled[i].logits)) << backend << " " << i;
      EXPECT_TRUE(same_bits(without[i].logits, used[i].logits)) << backend << " " << i;
      EXPECT_FALSE(same_bits(used[i].logits, used[3 + i].logits)) << backend << " " << i;
    }
  }
}

// Only the experts are computed by plain loops, and they read the packed adapters.
TEST_P(EveryBackend, PlainLoopsAmongFastKernels) {
  std::vector<Sequence> some;
  for (int slot = -1; slot < 3; ++slot) {
    for (const Sequence& s : sequences_of(reference_cases())) {
      if (s.slot == slot && static_cast<int>(some.size()) == slot + 1) some.push_back(s);
    }
  }
  ASSERT_EQ(some.size(), 4u);  // the base and each adapter
  const auto fast = load_model({.kernels = GetParam()});
  const auto plain = load_model({.kernels = GetParam(), .moe = named("reference", true)});
  bind_all(*fast);
  bind_all(*plain);
  const auto expected = run(*fast, some), got = run(*plain, some);
  const int vocab = fast->info().vocab;
  for (size_t i = 0; i < some.size(); ++i) {
    const auto a = log_softmax(&expected[i].logits[expected[i].logits.size() - vocab], vocab);
    const auto b = log_softmax(&got[i].logits[got[i].logits.size() - vocab], vocab);
    const auto best = std::max_element(a.begin(), a.end()) - a.begin();
    EXPECT_NEAR(a[best], b[best], GetParam() == "avx512bf16" ? 0.1 : 1e-3) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, EveryBackend, testing::ValuesIn(fast_rows()),
                         [](const auto& info) { return info.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryBackend);

}  // namespace
}  // namespace lk::test
