// The small models' adapters on the tasks that they were trained for, on the GPU, all of a model's
// and the base in one batch: whole prompts and prompts in chunks, steps recorded and not.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/cuda/on_device.h"
#include "tests/e2e/tasks.h"

namespace lk::test {
namespace {

class GpuTasks : public testing::TestWithParam<TaskModel> {
 protected:
  void expect_scores(const TaskRun& run) {
    const auto right = count_right(GetParam(), GetParam().folder, run);
    ASSERT_TRUE(right) << right.error().message;
    for (const auto& [task, of_300] : GetParam().scores) {
      const int count = right->at(task + "/" + task);
      std::printf("%s, %s: %d of %d right (float32: %d)\n", name_of(GetParam()).c_str(),
                  task.c_str(), count, run.rows, of_300);
      EXPECT_NEAR(count, of_300, 3);  // of a hundred one
      EXPECT_EQ(right->at("base/" + task), 0);
    }
  }
};

constexpr int kRows = 300, kBaseRows = 20;

TEST_P(GpuTasks, AnswersAsTrained) {
  expect_scores({.rows = kRows, .base_rows = kBaseRows, .device = "cuda"});
}

TEST_P(GpuTasks, PromptsInChunksAndNothingRecorded) {
  gpu().use_graphs(false);
  expect_scores({.rows = kRows, .base_rows = kBaseRows, .device = "cuda", .step_tokens = 48});
  gpu().use_graphs(true);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuTasks, testing::ValuesIn(task_models()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace lk::test
