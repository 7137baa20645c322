// The tasks that the small models' adapters were trained for, and how many of their rows a model
// answers. For tests only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/moe_backends.h"

namespace lk::test {

struct TaskRow {
  std::string question, answer;
};

// LORIKEET_TASK_ROWS, or `fallback`: how many rows of each task a test runs.
int task_rows(int fallback);

// The first `rows` rows of tests/data/tasks/<task>.jsonl.xz.
std::vector<TaskRow> read_task(const std::string& task, int rows);

// A trained small model of models/, and what its adapters answer with the reference implementation
// in float32.
struct TaskModel {
  std::string folder;
  std::map<std::string, int> scores;  // right answers of 300, by task and adapter of that name
};
const std::vector<TaskModel>& task_models();
const TaskModel& tiny_gpt_oss_tasks();
// Letters and digits of its folder's name.
std::string name_of(const TaskModel& model);

struct TaskRun {
  int rows = 0;       // of each task, on the adapter trained for it
  int base_rows = 0;  // of each task, on the base
  std::optional<ActivationPrecision> activations{};
  std::string device = "cpu";
  std::optional<int> step_tokens{};  // of prompts and answers in one step
};

// All of a run in one batch. Exact matches, by "<adapter>/<task>". `model` is a folder with
// `trained` in any format.
Result<std::map<std::string, int>> count_right(const TaskModel& trained, const std::string& model,
                                               const TaskRun& run);

}  // namespace lk::test
