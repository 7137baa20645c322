// The small model's three adapters on the tasks that they were trained for, all in one batch, and
// the base beside them. LORIKEET_TASK_ROWS (default 300, or 30 under a sanitizer) is the number of
// rows of each task.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/session.h"

namespace lk {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDefaultRows = 30;
#else
constexpr int kDefaultRows = 300;
#endif
// The base answers at length and never exactly; a few rows show it.
constexpr int kBaseRows = 20;

struct Row {
  std::string question, answer;
};

std::vector<Row> read_task(const std::string& task, int rows) {
  const std::string command =
      "xz -dc '" + std::string(LK_SOURCE_DIR) + "/tests/data/tasks/" + task + ".jsonl.xz'";
  FILE* pipe = popen(command.c_str(), "r");
  std::vector<Row> out;
  char line[1 << 14];
  while (pipe && fgets(line, sizeof line, pipe)) {
    const Json row = Json::parse(line);
    if (static_cast<int>(out.size()) < rows) out.push_back({row["q"], row["a"]});
  }
  if (pipe) pclose(pipe);
  return out;
}

std::string stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

TEST(Tasks, AdaptersAnswerAsTrainedInOneBatch) {
  const char* asked = std::getenv("LORIKEET_TASK_ROWS");
  const int rows = asked ? std::atoi(asked) : kDefaultRows;
  const std::string model = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";
  // Right answers of 300 with the reference; a row that is decided by rounding may fall either way.
  const std::map<std::string, int> expected = {{"json", 299}, {"math", 282}, {"sql", 299}};
  RunOptions options;
  options.model.model = model;
  for (const auto& [task, right] : expected)
    options.model.lora.push_back(task + "=" + model + "/adapters/" + task);
  const auto session = Session::load(options);
  ASSERT_TRUE(session) << session.error().message;
  Engine& engine = (*session)->engine();

  struct Asked {
    std::string key, answer, text;
  };
  std::map<RequestId, Asked> requests;
  const auto submit = [&](const std::string& adapter, const std::string& task, const Row& row) {
    Request request;
    request.adapter = *(*session)->adapter(adapter);
    const OrderedJson message = {{"role", "user"}, {"content", row.question}};
    request.prompt = *(*session)->encode_chat(OrderedJson::array({message}), nullptr, nullptr);
    request.max_tokens = 80;
    requests[*engine.submit(std::move(request))] = {adapter + "/" + task, row.answer, ""};
  };
  std::map<std::string, std::vector<Row>> tasks;
  for (const auto& [task, right] : expected) {
    tasks[task] = read_task(task, rows);
    ASSERT_EQ(tasks[task].size(), static_cast<size_t>(std::min(rows, 300)));
  }
  for (int i = 0; i < rows; ++i) {
    for (const auto& [task, list] : tasks) {
      if (static_cast<size_t>(i) >= list.size()) continue;
      submit(task, task, list[i]);
      if (i < kBaseRows) submit("base", task, list[i]);
    }
  }
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    engine.step(events);
    for (const TokenEvent& event : events) requests[event.request].text += event.text;
  }
  std::map<std::string, int> right;
  for (const auto& [id, asked_row] : requests)
    right[asked_row.key] += stripped(asked_row.text) == asked_row.answer;
  for (const auto& [task, of_300] : expected) {
    std::printf("%s: %d of %zu right\n", task.c_str(), right[task + "/" + task],
                tasks[task].size());
    if (rows >= 300) {
      EXPECT_NEAR(right[task + "/" + task], of_300, 3);
    } else {
      EXPECT_GE(right[task + "/" + task] * 10, rows * 8);
    }
    EXPECT_EQ(right["base/" + task], 0);
  }
}

}  // namespace
}  // namespace lk
