// The tasks that the small model's adapters were trained for, and how many of their rows a model
// answers. For tests only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace lk::test {

struct TaskRow {
  std::string question, answer;
};

// LORIKEET_TASK_ROWS, or `fallback`: how many rows of each task a test runs.
int task_rows(int fallback);

// The first `rows` rows of tests/data/tasks/<task>.jsonl.xz.
std::vector<TaskRow> read_task(const std::string& task, int rows);

// Right answers of 300 with the reference implementation in float32, by task.
const std::map<std::string, int>& reference_scores();

// Runs `rows` rows of each task on the adapter trained for it, and the first `base_rows` on the
// base, all in one batch. Exact matches, by "<adapter>/<task>". `model` is a folder with the small
// model in any format.
Result<std::map<std::string, int>> count_right(const std::string& model, int rows, int base_rows);

}  // namespace lk::test
