// The small models' adapters on the tasks that they were trained for, all of a model's in one
// batch, and the base beside them. LORIKEET_TASK_ROWS (default 300, or 30 under a sanitizer; a
// third of it with activations of 8 bits) is the number of rows of each task.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/e2e/tasks.h"
#include "tests/sanitizer.h"

namespace lk {
namespace {

constexpr int kDefaultRows = test::kSanitized ? 30 : 300;
// The base answers at length and never exactly; a few rows show it.
constexpr int kBaseRows = 20;

class Tasks : public testing::TestWithParam<test::TaskModel> {
 protected:
  // `points`: of a hundred that may be lost or won by rounding.
  void expect_scores(const test::TaskRun& run, double points) {
    auto right = test::count_right(GetParam(), GetParam().folder, run);
    ASSERT_TRUE(right) << right.error().message;
    for (const auto& [task, of_300] : GetParam().scores) {
      const int count = (*right)[task + "/" + task];
      std::printf("%s: %d of %d right\n", task.c_str(), count, run.rows);
      if (run.rows >= 300) {
        EXPECT_NEAR(count, of_300, 3 * points);
      } else {
        EXPECT_GE(count * 10, run.rows * 8);
      }
      EXPECT_EQ((*right)["base/" + task], 0);
    }
  }
};

TEST_P(Tasks, AdaptersAnswerAsTrainedInOneBatch) {
  expect_scores({.rows = test::task_rows(kDefaultRows), .base_rows = kBaseRows}, 1);
}

TEST_P(Tasks, WithActivationsOf8Bits) {
  expect_scores({.rows = test::task_rows(kDefaultRows / 3),
                 .base_rows = 0,
                 .activations = ActivationPrecision::k8Bit},
                1.5);
}

INSTANTIATE_TEST_SUITE_P(Models, Tasks, testing::ValuesIn(test::task_models()),
                         [](const auto& info) { return test::name_of(info.param); });

}  // namespace
}  // namespace lk
