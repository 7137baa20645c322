// Whole forward passes against models/tiny-gpt-oss-mxfp4/reference.json, which a float32 forward of
// the dequantized weights made (transformers and peft).
#include <gtest/gtest.h>

#include "tests/model/harness.h"

namespace lk::test {
namespace {

// The cases with the reference kernels' mixed batch, computed once.
struct Golden {
  std::vector<ReferenceCase> cases = reference_cases();
  std::vector<Sequence> sequences = sequences_of(cases);
  std::unique_ptr<Model> model = load_model();
  std::vector<SequenceRun> runs;

  Golden() {
    bind_all(*model);
    runs = run(*model, sequences, {.seed = 11, .steps = 4});
  }
  static Golden& get() {
    static Golden golden;
    return golden;
  }
};

TEST(Reference, MixedBatchOfAllCases) {
  const Golden& golden = Golden::get();
  ASSERT_EQ(golden.cases.size(), 35u);
  const int vocab = golden.model->info().vocab;
  const Deviation all = deviation(golden.cases, golden.runs, vocab);
  fmt::print("reference, float32 KV: {}\n", all.text());
  EXPECT_LE(all.largest(), 1e-3);
  for (size_t i = 0; i < golden.cases.size(); ++i) {
    EXPECT_EQ(first_greedy_difference(golden.cases[i], golden.runs[i], vocab, 0.01), -1)
        << golden.cases[i].adapter << " " << i;
  }
}

TEST(Reference, SomeCasesAlone) {
  const Golden& golden = Golden::get();
  for (size_t i = 0; i < golden.cases.size(); i += 5) {
    const auto alone = run(*golden.model, {golden.sequences[i]}, {.seed = 100 + i});
    EXPECT_TRUE(same_bits(alone[0].logits, golden.runs[i].logits)) << "case " << i;
    EXPECT_EQ(alone[0].experts, golden.runs[i].experts) << "case " << i;
  }
}

class FastRow : public testing::TestWithParam<std::string> {};

TEST_P(FastRow, AgreesWithTheReference) {
  const Golden& golden = Golden::get();
  const auto model = load_model({.kernels = GetParam(), .kv_type = KvType::kBF16});
  bind_all(*model);
  const int vocab = model->info().vocab;
  const auto runs = run(*model, golden.sequences, {.seed = 12, .steps = 8});
  const Deviation free = deviation(golden.cases, runs, vocab);
  const auto replayed =
      run(*model, golden.sequences, {.seed = 13, .steps = 3, .forced = &golden.runs});
  const Deviation forced = deviation(golden.cases, replayed, vocab);
  fmt::print("{}, bfloat16 KV: {}\n", GetParam(), free.text());
  fmt::print("{}, bfloat16 KV, experts replayed: {}\n", GetParam(), forced.text());
  // A row that rounds activations to bfloat16 runs by name only, and may be further off.
  const bool rounds = GetParam() == "avx512bf16";
  EXPECT_LE(free.mean(), rounds ? 0.015 : 0.01);
  EXPECT_LE(free.quantile(0.99), rounds ? 0.2 : 0.1);
  EXPECT_LE(forced.largest(), 0.25);
  // Where it flips an expert, such a row may choose another token.
  const auto& greedy = rounds ? replayed : runs;
  for (size_t i = 0; i < golden.cases.size(); ++i) {
    EXPECT_EQ(first_greedy_difference(golden.cases[i], greedy[i], vocab, 0.2), -1)
        << golden.cases[i].adapter << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, FastRow, testing::ValuesIn(fast_rows()),
                         [](const auto& info) { return info.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FastRow);

class EveryRow : public testing::TestWithParam<std::string> {};

// Promise 2: what the base says has the same bits whether adapters are loaded or not.
TEST_P(EveryRow, UnusedAdaptersChangeNothing) {
  std::vector<Sequence> base;
  for (const Sequence& s : Golden::get().sequences) {
    if (s.slot < 0) base.push_back(s);
  }
  ASSERT_EQ(base.size(), 8u);
  if (GetParam() == "reference") base.resize(2);  // slow
  const auto model = load_model({.kernels = GetParam(), .kv_type = KvType::kBF16});
  const auto without = run(*model, base);
  bind_all(*model);
  const auto with = run(*model, base);
  for (int slot = 0; slot < 3; ++slot) model->set_slot(slot, nullptr);
  const auto emptied = run(*model, base);
  for (size_t i = 0; i < base.size(); ++i) {
    EXPECT_TRUE(same_bits(without[i].logits, with[i].logits)) << i;
    EXPECT_TRUE(same_bits(without[i].logits, emptied[i].logits)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, EveryRow, testing::ValuesIn(every_row()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lk::test
