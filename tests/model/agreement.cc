#include "tests/model/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

namespace lk::test {

Agreement::Agreement(Fixture fixture)
    : fixture_(std::move(fixture)),
      name_(std::filesystem::path(fixture_.folder).filename()),
      cases_(reference_cases(fixture_)),
      sequences_(sequences_of(cases_, fixture_)) {}

void Agreement::keep_some_cases(size_t of_each) {
  std::map<std::string, size_t> kept;
  std::erase_if(cases_, [&](const ReferenceCase& c) { return kept[c.adapter]++ >= of_each; });
  sequences_ = sequences_of(cases_, fixture_);
}

void Agreement::keep_adapter(const std::string& name) {
  std::erase_if(cases_, [&](const ReferenceCase& c) { return c.adapter != name; });
  sequences_ = sequences_of(cases_, fixture_);
}

std::unique_ptr<Model> Agreement::load(const LoadHooks& hooks) const {
  auto model = load_model(hooks, fixture_);
  bind_all(*model, fixture_);
  return model;
}

Deviation Agreement::deviation_of(Model& model, const RunOptions& options) const {
  return deviation(cases_, run(model, sequences_, options), model.info().vocab);
}

const std::vector<SequenceRun>& Agreement::reference_runs() const {
  // By model and cases: some tests keep fewer.
  static std::map<std::pair<std::string, std::vector<std::vector<int32_t>>>,
                  std::vector<SequenceRun>>
      all;
  std::vector<std::vector<int32_t>> tokens;
  for (const Sequence& sequence : sequences_) {
    tokens.push_back(sequence.tokens);
    tokens.back().push_back(sequence.slot);
  }
  std::vector<SequenceRun>& runs = all[{fixture_.folder, std::move(tokens)}];
  if (runs.empty()) runs = run(*load({}), sequences_, {.seed = 4, .steps = 3});
  return runs;
}

void Agreement::expect_agrees(bool rows_that_round) const {
  const std::vector<SequenceRun>& runs = reference_runs();
  const int vocab = static_cast<int>(runs[0].logits.size() / sequences_[0].tokens.size());
  const Deviation exact = deviation(cases_, runs, vocab);
  fmt::print("{}, reference: {}\n", name_, exact.text());
  EXPECT_LE(exact.largest(), 1e-3);
  for (size_t i = 0; i < cases_.size(); ++i)
    EXPECT_EQ(first_greedy_difference(cases_[i], runs[i], vocab, 0.01), -1) << i;
  for (const std::string& row : fast_rows()) {
    if (row != "avx512bf16" || rows_that_round) expect_row_agrees(row);
  }
}

void Agreement::expect_row_agrees(const std::string& row) const {
  const std::vector<SequenceRun>& runs = reference_runs();
  const auto model = load({.kernels = row, .kv_type = KvType::kBF16});
  const Deviation free = deviation_of(*model);
  const Deviation forced = deviation_of(*model, {.seed = 5, .steps = 2, .forced = &runs});
  fmt::print("{}, {}: {}; experts replayed: {}\n", name_, row, free.text(), forced.text());
  EXPECT_LE(forced.largest(), 0.25);
  // A row that rounds activations to bfloat16 runs by name only, and may be further off.
  if (row == "avx512bf16") return;
  EXPECT_LE(free.mean(), 0.01);
  EXPECT_LE(free.quantile(0.99), 0.1);
}

void Agreement::expect_row_stays_near(const std::string& row) const {
  const auto model = load({.kernels = row, .kv_type = KvType::kBF16});
  const Deviation forced =
      deviation_of(*model, {.seed = 5, .steps = 2, .forced = &reference_runs()});
  fmt::print("{}, {}, experts replayed: {}\n", name_, row, forced.text());
  EXPECT_LE(forced.mean(), 0.03);
  EXPECT_LE(forced.quantile(0.99), 0.25);
  EXPECT_LE(forced.largest(), 0.5);
}

void Agreement::expect_rounded_activations_stay_near() const {
  for (const std::string& row : fast_rows()) expect_rounded_row_stays_near(row);
}

void Agreement::expect_rounded_row_stays_near(const std::string& row) const {
  const auto model = load({.kernels = row,
                           .kv_type = KvType::kBF16,
                           .moe = {.backend = "", .activations = ActivationPrecision::k8Bit}});
  const Deviation forced =
      deviation_of(*model, {.seed = 5, .steps = 2, .forced = &reference_runs()});
  fmt::print("{}, {}, 8-bit activations, experts replayed: {}\n", name_, row, forced.text());
  if (row == "avx512bf16") return;  // rounds what lies between the experts as well
  EXPECT_LE(forced.mean(), row == "cuda" ? 0.04 : 0.03);  // so does the GPU, from float32 sums
  EXPECT_LE(forced.quantile(0.99), 0.3);
  EXPECT_LE(forced.largest(), row == "cuda" ? 1.0 : 0.5);
  EXPECT_GT(forced.mean(), 1e-4) << "nothing was rounded";
}

void Agreement::expect_same_bits(const std::string& kernels) const {
  const auto model = load({.kernels = kernels, .kv_type = KvType::kBF16});
  const auto together = run(*model, sequences_, {.seed = 6, .steps = 6});
  for (size_t i = 0; i < sequences_.size(); i += 3) {
    const auto alone = run(*model, {sequences_[i]});
    EXPECT_TRUE(same_bits(alone[0].logits, together[i].logits)) << kernels << " " << i;
  }
  const auto stepped = run(*model, {sequences_[1]}, {.seed = 7, .one_token_steps = true});
  EXPECT_TRUE(same_bits(stepped[0].logits, together[1].logits)) << kernels;
}

std::string test_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

}  // namespace lk::test
