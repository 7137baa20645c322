// The small model's three adapters on the tasks that they were trained for, all in one batch, and
// the base beside them. LORIKEET_TASK_ROWS (default 300, or 30 under a sanitizer) is the number of
// rows of each task.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/e2e/tasks.h"

namespace lk {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDefaultRows = 30;
#else
constexpr int kDefaultRows = 300;
#endif
// The base answers at length and never exactly; a few rows show it.
constexpr int kBaseRows = 20;

TEST(Tasks, AdaptersAnswerAsTrainedInOneBatch) {
  const int rows = test::task_rows(kDefaultRows);
  const std::string model = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";
  auto right = test::count_right(model, rows, kBaseRows);
  ASSERT_TRUE(right) << right.error().message;
  // A row that is decided by rounding may fall either way.
  for (const auto& [task, of_300] : test::reference_scores()) {
    const int count = (*right)[task + "/" + task];
    std::printf("%s: %d of %d right\n", task.c_str(), count, rows);
    if (rows >= 300) {
      EXPECT_NEAR(count, of_300, 3);
    } else {
      EXPECT_GE(count * 10, rows * 8);
    }
    EXPECT_EQ((*right)["base/" + task], 0);
  }
}

}  // namespace
}  // namespace lk
