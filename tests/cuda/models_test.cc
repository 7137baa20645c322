// Whole models on the GPU against their references, as the CPU's kernels are (tests/model).
#include <gtest/gtest.h>

#include "tests/cuda/on_device.h"
#include "tests/model/agreement.h"

namespace lk::test {
namespace {

const std::vector<std::string> kTrained = {"tiny-gpt-oss-mxfp4", "tiny-qwen3.6-fp8",
                                           "tiny-nemotron-nvfp4"};

Fixture trained(const std::string& name) {
  return name == kTrained[0] ? tiny_gpt_oss() : hybrid_model(name);
}

class GpuModel : public testing::TestWithParam<std::string> {
 protected:
  Agreement model_{trained(GetParam())};
};

TEST_P(GpuModel, AgreesWithTransformers) {
  model_.keep_some_cases(6);
  model_.expect_row_agrees("cuda");
}

// Alone and in company, in chunks: the same to rounding. Recordings on and off: the same bits.
TEST_P(GpuModel, RecordingsChangeNoBit) {
  const auto model = model_.load({.kernels = "cuda", .kv_type = KvType::kBF16});
  std::vector<Sequence> sequences = sequences_of(model_.cases(), trained(GetParam()));
  sequences.resize(std::min<size_t>(sequences.size(), 6));
  const RunOptions stepped{.seed = 7, .one_token_steps = true, .trace = false};
  gpu().use_graphs(false);
  const auto plain = run(*model, sequences, stepped);
  gpu().use_graphs(true);
  const auto recorded = run(*model, sequences, stepped);
  for (size_t i = 0; i < sequences.size(); ++i)
    EXPECT_TRUE(same_bits(plain[i].logits, recorded[i].logits)) << i;
}

// Promise 2: adapters in slots, and used by others in the batch, change no bit of the base.
TEST_P(GpuModel, AdaptersLeaveTheBaseAlone) {
  const auto with = model_.load({.kernels = "cuda", .kv_type = KvType::kBF16});
  const auto without =
      load_model({.kernels = "cuda", .kv_type = KvType::kBF16}, trained(GetParam()));
  std::vector<Sequence> sequences = sequences_of(model_.cases(), trained(GetParam()));
  std::vector<Sequence> base = sequences;
  for (Sequence& sequence : base) sequence.slot = -1;
  const auto quiet = run(*without, base, {.seed = 9, .steps = 3});
  const auto loaded = run(*with, base, {.seed = 9, .steps = 3});
  const auto mixed = run(*with, sequences, {.seed = 9, .steps = 3});
  int untouched = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_TRUE(same_bits(quiet[i].logits, loaded[i].logits)) << i;
    if (sequences[i].slot >= 0) continue;
    EXPECT_TRUE(same_bits(quiet[i].logits, mixed[i].logits)) << i;
    ++untouched;
  }
  EXPECT_GT(untouched, 0);
}

INSTANTIATE_TEST_SUITE_P(Trained, GpuModel, testing::ValuesIn(kTrained),
                         [](const auto& info) { return test_name(info.param); });

// FP8 experts with activations in E4M3: the row that --activations 8bit chooses.
TEST(GpuRounded, StaysNear) {
  const Agreement agreement(trained(kTrained[1]));
  const auto model = agreement.load(
      {.kernels = "cuda", .moe = {.backend = "", .activations = ActivationPrecision::k8Bit}});
  for (const std::string& group : model->info().moe_plan)
    EXPECT_NE(group.find("on cuda-w8a8"), std::string::npos) << group;
  agreement.expect_rounded_row_stays_near("cuda");
}

class GpuSeeded : public testing::TestWithParam<std::string> {};

TEST_P(GpuSeeded, AgreesWithTransformers) {
  Agreement(small_model(GetParam())).expect_row_stays_near("cuda");
}

INSTANTIATE_TEST_SUITE_P(Small, GpuSeeded,
                         testing::Values("qwen3_moe", "olmoe", "mixtral", "qwen3_moe-fp8",
                                         "olmoe-fp8-dynamic", "qwen3_5_moe", "nemotron_h"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace lk::test
