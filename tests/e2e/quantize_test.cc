// The small model requantized to every format as every tool writes it: it loads without a warning,
// `inspect` says what it is made of, and its adapters answer as before. LORIKEET_TASK_ROWS is the
// number of rows of each task (default 40; 300 take a minute for each target).
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/inspect.h"
#include "model/quantize.h"
#include "quant/format.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/e2e/tasks.h"
#include "tests/sanitizer.h"

namespace lk {
namespace {

constexpr int kDefaultRows = test::kSanitized ? 4 : 40;
const int kRows = test::task_rows(kDefaultRows);
const test::TaskModel& kTrained = test::tiny_gpt_oss_tasks();
const std::string kModel = kTrained.folder;

// What the model as it is answers on the same rows.
const std::map<std::string, int>& before() {
  static const std::map<std::string, int> right =
      *test::count_right(kTrained, kModel, {.rows = kRows, .base_rows = 0});
  return right;
}

class Quantized : public testing::TestWithParam<const Target*> {};

TEST_P(Quantized, D09_LoadsAndItsAdaptersAnswerAsBefore) {
  const Target& target = *GetParam();
  const test::TempFolder folder;
  const std::string out = folder.path() + "/out";
  QuantizeOptions options;
  options.target = &target;
  options.measure = true;
  const auto report = quantize_checkpoint(kModel, out, options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->warnings.empty()) << report->warnings.front();

  InspectOptions inspect;
  inspect.model.model = out;
  const auto seen = inspect_report(inspect);
  ASSERT_TRUE(seen) << seen.error().message;
  EXPECT_TRUE((*seen)["warnings"].empty()) << (*seen)["warnings"].dump();
  const std::set<std::string> plain = {"embedding", "router", "head"};
  for (const auto& row : (*seen)["tensors"]) {
    const std::string stage = row["stage"];
    const bool expert = stage.starts_with("expert");
    const bool quantized = expert || (target.scope == Scope::kLinears && !plain.count(stage));
    EXPECT_EQ(row["format"], quantized ? std::string(target.stored->name) : "bf16") << stage;
  }
  for (const QuantizedLinear& linear : report->linears) {
    const double most = target.stored->element == Element::kE2M1 ? 0.15 : 0.04;
    EXPECT_LE(linear.error, most) << linear.name;
    EXPECT_EQ(linear.error > 0 || linear.from == linear.to || linear.from == "mxfp4", true)
        << linear.name;
  }

  auto right = test::count_right(kTrained, out, {.rows = kRows, .base_rows = 0});
  ASSERT_TRUE(right) << right.error().message;
  for (const auto& [key, was] : before()) {
    const int now = (*right)[key];
    std::printf("%s %s: %s %d of %d right, %d before\n", std::string(target.format).c_str(),
                std::string(target.recipe).c_str(), key.c_str(), now, kRows, was);
    // Three points of a hundred; among few rows two more may fall by chance.
    EXPECT_GE(now, was - kRows * 3 / 100 - (kRows < 300 ? 2 : 0)) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTargets, Quantized, testing::ValuesIn(all_targets()),
                         [](const testing::TestParamInfo<const Target*>& info) {
                           std::string name =
                               fmt::format("{}_{}", info.param->format, info.param->recipe);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lk
