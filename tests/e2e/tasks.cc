#include "tests/e2e/tasks.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/session.h"

namespace lk::test {
namespace {

std::string stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace

int task_rows(int fallback) {
  const char* asked = std::getenv("LORIKEET_TASK_ROWS");
  return asked ? std::atoi(asked) : fallback;
}

std::vector<TaskRow> read_task(const std::string& task, int rows) {
  const std::string command =
      "xz -dc '" + std::string(LK_SOURCE_DIR) + "/tests/data/tasks/" + task + ".jsonl.xz'";
  FILE* pipe = popen(command.c_str(), "r");
  std::vector<TaskRow> out;
  char line[1 << 14];
  while (pipe && fgets(line, sizeof line, pipe)) {
    const Json row = Json::parse(line);
    if (static_cast<int>(out.size()) < rows) out.push_back({row["q"], row["a"]});
  }
  if (pipe) pclose(pipe);
  return out;
}

const std::vector<TaskModel>& task_models() {
  const std::string models = std::string(LK_SOURCE_DIR) + "/models/";
  static const std::vector<TaskModel> all = {
      {models + "tiny-gpt-oss-mxfp4", {{"json", 299}, {"math", 282}, {"sql", 299}}},
      {models + "tiny-qwen3.6-fp8", {{"json", 299}, {"sql", 281}}},
      {models + "tiny-nemotron-nvfp4", {{"json", 300}, {"sql", 299}}},
  };
  return all;
}

const TaskModel& tiny_gpt_oss_tasks() { return task_models().front(); }

std::string name_of(const TaskModel& model) {
  std::string name = std::filesystem::path(model.folder).filename();
  std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
  return name;
}

Result<std::map<std::string, int>> count_right(const TaskModel& trained, const std::string& model,
                                               const TaskRun& run) {
  RunOptions options;
  options.model.model = model;
  options.model.activations = run.activations;
  options.model.device = run.device;
  options.max_num_batched_tokens = run.step_tokens;
  for (const auto& [task, right] : trained.scores)
    options.model.lora.push_back(task + "=" + trained.folder + "/adapters/" + task);
  LK_ASSIGN_OR_RETURN(const auto session, Session::load(options));
  Engine& engine = session->engine();
  struct Asked {
    std::string key, answer, text;
  };
  std::map<RequestId, Asked> requests;
  const auto submit = [&](const std::string& adapter, const std::string& task,
                          const TaskRow& row) -> Status {
    Request request;
    LK_ASSIGN_OR_RETURN(request.adapter, session->adapter(adapter));
    const OrderedJson message = {{"role", "user"}, {"content", row.question}};
    LK_ASSIGN_OR_RETURN(request.prompt,
                        session->encode_chat(OrderedJson::array({message}), nullptr, nullptr));
    request.max_tokens = 80;
    LK_ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request)));
    requests[id] = {adapter + "/" + task, row.answer, ""};
    return {};
  };
  std::map<std::string, std::vector<TaskRow>> tasks;
  for (const auto& [task, right] : trained.scores) tasks[task] = read_task(task, run.rows);
  for (int i = 0; i < run.rows; ++i) {
    for (const auto& [task, list] : tasks) {
      if (static_cast<size_t>(i) >= list.size()) {
        return invalid("task {} has only {} rows", task, list.size());
      }
      LK_RETURN_IF_ERROR(submit(task, task, list[static_cast<size_t>(i)]));
      if (i < run.base_rows) {
        LK_RETURN_IF_ERROR(submit("base", task, list[static_cast<size_t>(i)]));
      }
    }
  }
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    engine.step(events);
    for (const TokenEvent& event : events) requests[event.request].text += event.text;
  }
  std::map<std::string, int> right;
  for (const auto& [id, asked] : requests) right[asked.key] += stripped(asked.text) == asked.answer;
  return right;
}

}  // namespace lk::test
