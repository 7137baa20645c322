// Many streams over adapters that come, go and change all the while: every answer must be its own
// adapter's, and memory must not grow. LORIKEET_SOAK_SECONDS sets how long (default 4; 600 for the
// full run), LORIKEET_SOAK_STREAMS how many clients (default 64).
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "tests/serve/server_process.h"

namespace lk {
namespace {

using Clock = std::chrono::steady_clock;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

constexpr int kRows = 8;  // questions of each task
const std::vector<std::string> kTasks = {"sql", "json", "math"};
const std::map<std::string, int> kRank = {{"sql", 8}, {"json", 4}, {"math", 16}};

// One content: an adapter of the small model with its rank index rotated.
struct Content {
  std::string task, path;
};

class Soak {
 public:
  void prepare();
  void learn(ServerProcess& server);
  void load_clients(ServerProcess& server, double seconds, unsigned seed);
  void change_adapters(ServerProcess& server, double seconds);

  std::string lora_dir() const { return dir_; }
  std::string root() const { return root_; }
  int answers() const { return answers_; }
  int left() const { return left_; }
  int changes() const { return changes_; }
  std::vector<std::string> faults() const { return faults_; }

 private:
  void one_request(ServerProcess& server, std::mt19937& random);
  void check(const std::string& name, const std::string& task, const std::string& question,
             const std::string& fingerprint, const std::string& text);
  void fault(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (faults_.size() < 20) faults_.push_back(what);
  }

  std::string dir_, root_;
  std::vector<std::pair<std::string, std::string>> names_;  // name in lora_dir, task
  std::vector<Content> contents_;                           // the dozen and some replacements
  std::map<std::string, std::vector<TaskRow>> rows_;
  std::vector<std::string> texts_;  // plain prompts for the base
  // What each content answers alone: (fingerprint, question) -> text.
  std::map<std::pair<std::string, std::string>, std::string> known_;
  std::map<std::string, std::string> task_of_;  // fingerprint -> task; "base" for the base
  std::mutex mutex_;
  std::vector<std::string> faults_;
  std::atomic<int> answers_{0}, left_{0}, changes_{0};
};

void Soak::prepare() {
  dir_ = temporary_folder();
  root_ = temporary_folder();
  const std::string model = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";
  for (const std::string& task : kTasks) {
    rows_[task] = task_rows(task, kRows);
    // Rotations of distinct content: json's rank allows four.
    for (int i = 0; i < 4; ++i) {
      const std::string name = task + "-" + std::to_string(i);
      const int shift = i * kRank.at(task) / 4;
      rotate_adapter(model + "/adapters/" + task, dir_ + "/" + name, shift);
      names_.emplace_back(name, task);
      contents_.push_back({task, dir_ + "/" + name});
    }
    if (task == "json") continue;
    for (int shift : {1, 3}) {
      const std::string path = root_ + "/" + task + "-new" + std::to_string(shift);
      rotate_adapter(model + "/adapters/" + task, path, shift);
      contents_.push_back({task, path});
    }
  }
  for (int i = 0; i < kRows; ++i) texts_.push_back("The " + std::to_string(i + 2) + " rivers of");
}

OrderedJson text_body(const std::string& prompt) {
  return {{"model", "base"}, {"prompt", prompt}, {"max_tokens", 24}, {"temperature", 0}};
}

void Soak::learn(ServerProcess& server) {
  HttpClient client = server.client();
  const std::string base = client.get("/v1/models").json()["data"][0]["id"].get<std::string>();
  for (const Content& content : contents_) {
    ASSERT_EQ(
        client
            .post("/v1/load_lora_adapter",
                  {{"lora_name", "probe"}, {"lora_path", content.path}, {"load_inplace", true}})
            .status,
        200)
        << content.path;
    int right = 0;
    for (const TaskRow& row : rows_[content.task]) {
      const HttpAnswer answer =
          client.post("/v1/chat/completions", chat_body("probe", row.question));
      ASSERT_EQ(answer.status, 200) << answer.body;
      const std::string who = answer.json()["system_fingerprint"];
      known_[{who, row.question}] = chat_text(answer);
      right += chat_text(answer) == row.answer;
      task_of_[who] = content.task;
    }
    EXPECT_GE(right, kRows - 1) << content.path;
  }
  EXPECT_EQ(client.post("/v1/unload_lora_adapter", {{"lora_name", "probe"}}).status, 200);
  EXPECT_EQ(task_of_.size(), contents_.size()) << "contents share a fingerprint";
  for (const std::string& text : texts_) {
    OrderedJson body = text_body(text);
    body["model"] = base;
    const HttpAnswer answer = client.post("/v1/completions", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::string who = answer.json()["system_fingerprint"];
    known_[{who, text}] = answer.json()["choices"][0]["text"];
    task_of_[who] = base;
  }
}

void Soak::check(const std::string& name, const std::string& task, const std::string& question,
                 const std::string& fingerprint, const std::string& text) {
  ++answers_;
  const auto of = task_of_.find(fingerprint);
  if (of == task_of_.end() || of->second != task)
    return fault(name + ": answered by '" + fingerprint + "', not a version of it");
  const std::string& expected = known_.at({fingerprint, question});
  if (text != expected)
    fault(name + ": '" + question + "' -> '" + text + "', alone '" + expected + "'");
}

void Soak::one_request(ServerProcess& server, std::mt19937& random) {
  HttpClient client = server.client();
  const bool to_base = random() % 6 == 0;
  const auto& [name, task] = names_[random() % names_.size()];
  std::string base;
  for (const auto& [who, of] : task_of_) {
    if (!kRank.contains(of)) base = of;
  }
  const std::string question =
      to_base ? texts_[random() % texts_.size()] : rows_.at(task)[random() % kRows].question;
  OrderedJson body = to_base ? text_body(question) : chat_body(name, question);
  if (to_base) body["model"] = base;
  const std::string path = to_base ? "/v1/completions" : "/v1/chat/completions";
  const std::string model = to_base ? base : name;
  const unsigned kind = random() % 10;
  if (kind < 5) {
    const HttpAnswer answer = client.post(path, body);
    if (answer.status != 200)
      return fault(model + ": status " + std::to_string(answer.status) + " " + answer.body);
    const OrderedJson json = answer.json();
    if (json["model"] != model) fault(model + ": the answer names " + json["model"].dump());
    check(model, to_base ? base : task, question, json["system_fingerprint"],
          to_base ? json["choices"][0]["text"].get<std::string>() : chat_text(answer));
    return;
  }
  body["stream"] = true;
  const size_t leave_after = kind == 9 ? 1 + random() % 12 : 0;
  const StreamAnswer answer = client.stream(
      path, body,
      [&](const StreamAnswer& so_far) {
        return leave_after == 0 || so_far.events.size() < leave_after;
      },
      random() % 2 == 0);
  if (leave_after > 0) {
    ++left_;
    return;
  }
  if (answer.status != 200 || !answer.done || answer.events.empty())
    return fault(model + ": stream with status " + std::to_string(answer.status) + " " +
                 answer.body.substr(0, 300));
  const OrderedJson first = OrderedJson::parse(answer.events.front().data);
  check(model, to_base ? base : task, question, first.value("system_fingerprint", std::string()),
        to_base ? answer.text() : trimmed(answer.text()));
}

void Soak::load_clients(ServerProcess& server, double seconds, unsigned seed) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::vector<std::thread> clients;
  for (int i = 0; i < setting("LORIKEET_SOAK_STREAMS", 64); ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(seed * 1000 + static_cast<unsigned>(i));
      while (Clock::now() < end) one_request(server, random);
    });
  }
  for (std::thread& client : clients) client.join();
}

// Replaces names by other contents of the same task, unloads them (they are then found in the
// directory again), and puts their first content back.
void Soak::change_adapters(ServerProcess& server, double seconds) {
  std::mt19937 random(7);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  HttpClient client = server.client();
  while (Clock::now() < end) {
    const auto& [name, task] = names_[random() % names_.size()];
    if (random() % 3 == 0) {
      const int status = client.post("/v1/unload_lora_adapter", {{"lora_name", name}}).status;
      if (status != 200 && status != 404) fault("unload " + name + ": " + std::to_string(status));
    } else {
      std::vector<std::string> fitting;
      for (const Content& content : contents_) {
        if (content.task == task) fitting.push_back(content.path);
      }
      const HttpAnswer answer =
          client.post("/v1/load_lora_adapter", {{"lora_name", name},
                                                {"lora_path", fitting[random() % fitting.size()]},
                                                {"load_inplace", true}});
      if (answer.status != 200)
        fault("load " + name + ": " + std::to_string(answer.status) + " " + answer.body);
    }
    ++changes_;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

TEST(Soak, EveryAnswerIsItsOwnAdaptersWhileAdaptersComeAndGo) {
  const double seconds = setting("LORIKEET_SOAK_SECONDS", 4);
  Soak soak;
  soak.prepare();
  ServerProcess server({"--lora-dir", soak.lora_dir(), "--lora-root", soak.root(),
                        "--allow-runtime-lora", "--max-loras", "2", "--max-cpu-loras", "3",
                        "--max-num-seqs", "64"});
  ASSERT_TRUE(server.ready()) << server.log();
  soak.learn(server);
  if (HasFatalFailure()) return;

  const auto run = [&](double duration, unsigned seed) {
    std::thread changes([&] { soak.change_adapters(server, duration); });
    soak.load_clients(server, duration, seed);
    changes.join();
  };
  run(std::min(60.0, std::max(2.0, seconds * 0.3)), 1);  // reaches its working set
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const size_t before = server.resident_bytes();
  run(seconds, 2);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const size_t after = server.resident_bytes();
  std::printf("%d answers, %d left early, %d changes; memory %.1f MB, then %.1f MB\n",
              soak.answers(), soak.left(), soak.changes(), static_cast<double>(before) / 1e6,
              static_cast<double>(after) / 1e6);
  for (const std::string& fault : soak.faults()) ADD_FAILURE() << fault;
  EXPECT_GT(soak.answers(), 50);
  EXPECT_GT(soak.changes(), 3);
  // In a short run the allocator has not settled yet.
  const double most =
      seconds >= 120 ? static_cast<double>(before) * 1.02 : static_cast<double>(before) + 30e6;
  EXPECT_LE(static_cast<double>(after), most + static_cast<double>(test::kKeptFreed));
  EXPECT_EQ(server.metric("vllm:num_requests_running"), 0);
  EXPECT_EQ(server.metric("vllm:num_requests_waiting"), 0);
  server.signal(15);
  EXPECT_EQ(server.wait(20), 0) << server.log();
}

}  // namespace
}  // namespace lk
