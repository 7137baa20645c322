// Whose answer is it? Names follow docs/bug-cases.md.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/serve/server_process.h"

namespace lk {
namespace {

const std::vector<std::string> kTasks = {"sql", "json", "math"};

std::vector<std::string> with_adapters(std::vector<std::string> args) {
  args.push_back("--lora-modules");
  for (const std::string& task : kTasks) args.push_back(task + "=" + adapter_path(task));
  return args;
}

// The base's name.
std::string base_name(ServerProcess& server) {
  return server.client().get("/v1/models").json()["data"][0]["id"];
}

HttpAnswer ask(ServerProcess& server, const std::string& model, const std::string& question,
               int max_tokens = 80) {
  return server.client().post("/v1/chat/completions", chat_body(model, question, max_tokens));
}

int cached_tokens(const HttpAnswer& answer) {
  return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
}

// A question whose rendered prompt spans many KV blocks.
// `filler` keeps tests from finding each other's blocks.
std::string long_question(const std::string& question, const std::string& filler) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += filler;
  return text + question;
}

class Identity : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess(with_adapters(
        {"--allow-runtime-lora", "--lora-root", std::string(LK_SOURCE_DIR) + "/models",
         "--lora-root", std::filesystem::temp_directory_path().string(), "--max-loras", "2"}));
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  void SetUp() override { ASSERT_TRUE(server_->ready()) << server_->log(); }
  static ServerProcess* server_;
};
ServerProcess* Identity::server_ = nullptr;

TEST_F(Identity, E01_AdaptersLeaveTheBaseAsItWas) {
  const std::string base = base_name(*server_);
  const std::string question = task_rows("sql", 1)[0].question;
  const std::string first = chat_text(ask(*server_, base, question, 30));
  for (const std::string& task : kTasks) {
    ask(*server_, task, question, 30);
    const HttpAnswer again = ask(*server_, base, question, 30);
    EXPECT_EQ(chat_text(again), first) << "after " << task;
    EXPECT_EQ(again.json()["model"], base);
  }
}

TEST_F(Identity, E02_E04_ManyStreamsOfAllAdaptersAtOnce) {
  std::map<std::string, std::vector<TaskRow>> rows;
  for (const std::string& task : kTasks) rows[task] = task_rows(task, 20);
  std::atomic<int> right{0}, asked{0}, foreign{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 48; ++i) {
    clients.emplace_back([&, i] {
      const std::string& task = kTasks[static_cast<size_t>(i) % 3];
      const TaskRow& row = rows[task][static_cast<size_t>(i) % 20];
      const HttpAnswer answer = ask(*server_, task, row.question);
      ++asked;
      right += answer.status == 200 && chat_text(answer) == row.answer;
      foreign += answer.status != 200 || answer.json()["model"] != task;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(foreign, 0);
  EXPECT_GE(right, asked - 2);  // math errs now and then, alone as well
}

TEST_F(Identity, E06_AStreamKeepsItsAdapterWhileOthersCome) {
  const TaskRow row = task_rows("sql", 3)[2];
  const std::string alone = chat_text(ask(*server_, "sql", row.question));
  std::vector<std::thread> others;
  OrderedJson body = chat_body("sql", row.question);
  body["stream"] = true;
  bool started = false;
  const StreamAnswer stream =
      server_->client().stream("/v1/chat/completions", body, [&](const StreamAnswer&) {
        if (!started) {
          started = true;
          for (int i = 0; i < 6; ++i) {
            others.emplace_back(
                [&, i] { ask(*server_, kTasks[static_cast<size_t>(i) % 3], row.question, 20); });
          }
        }
        return true;
      });
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(stream.done);
  EXPECT_EQ(trimmed(stream.text()), alone);
}

TEST_F(Identity, F01_OnePromptManyIdentities) {
  const std::string base = base_name(*server_);
  const std::string question =
      long_question(task_rows("json", 2)[1].question, "This line fills the page. ");
  std::map<std::string, std::string> cold;
  for (const std::string& who : {std::string("sql"), std::string("json"), base}) {
    const HttpAnswer answer = ask(*server_, who, question, 30);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(cached_tokens(answer), 0) << who;
    cold[who] = chat_text(answer);
  }
  for (const std::string& who : {base, std::string("json"), std::string("sql")}) {
    const HttpAnswer answer = ask(*server_, who, question, 30);
    EXPECT_GT(cached_tokens(answer), 0) << who;
    EXPECT_EQ(chat_text(answer), cold[who]) << who;
  }
}

TEST_F(Identity, F02_G06_G11_AReloadedNameNeverMeetsOldKeysAndValues) {
  HttpClient client = server_->client();
  const TaskRow sql = task_rows("sql", 2)[1], json = task_rows("json", 2)[1];
  std::map<std::string, std::string> fingerprints;
  for (int round = 0; round < 6; ++round) {
    const std::string task = round % 2 == 0 ? "sql" : "json";
    const bool inplace = round % 3 != 0;
    if (!inplace && round > 0) {
      EXPECT_EQ(client.post("/v1/unload_lora_adapter", {{"lora_name", "t"}}).status, 200);
      EXPECT_EQ(ask(*server_, "t", "x", 2).status, 404);
    }
    const HttpAnswer loaded = client.post(
        "/v1/load_lora_adapter",
        {{"lora_name", "t"}, {"lora_path", adapter_path(task)}, {"load_inplace", inplace}});
    ASSERT_EQ(loaded.status, 200) << loaded.body;
    const TaskRow& row = task == "sql" ? sql : json;
    // The same long prompt for both contents, so that stale blocks would be found.
    const HttpAnswer warm =
        ask(*server_, "t", long_question(sql.question, "Another line for the page. "), 20);
    EXPECT_EQ(cached_tokens(warm) == 0, round < 2) << "round " << round;
    const HttpAnswer answer = ask(*server_, "t", row.question);
    EXPECT_EQ(chat_text(answer), row.answer) << "round " << round;
    const std::string who = answer.json()["system_fingerprint"];
    if (fingerprints.contains(task)) {
      EXPECT_EQ(fingerprints[task], who);
    }
    fingerprints[task] = who;
  }
  EXPECT_NE(fingerprints["sql"], fingerprints["json"]);
  EXPECT_EQ(client.post("/v1/unload_lora_adapter", {{"lora_name", "t"}}).status, 200);
}

TEST_F(Identity, G05_ManyLoadsOfOneNameAreOneLoad) {
  const double before = server_->metric("lorikeet:lora_loads_total");
  const std::string folder = temporary_folder() + "/twin";
  rotate_adapter(adapter_path("sql"), folder, 5);
  std::atomic<int> good{0}, taken{0}, other{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&] {
      const int status =
          server_->client()
              .post("/v1/load_lora_adapter", {{"lora_name", "storm"}, {"lora_path", folder}})
              .status;
      ++(status == 200 ? good : status == 400 || status == 409 ? taken : other);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(good, 1);
  EXPECT_EQ(other, 0);
  EXPECT_EQ(server_->metric("lorikeet:lora_loads_total") - before, 1);
  threads.clear();
  std::atomic<int> gone{0}, unknown{0};
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&] {
      const int status =
          server_->client().post("/v1/unload_lora_adapter", {{"lora_name", "storm"}}).status;
      ++(status == 200 ? gone : status == 404 ? unknown : other);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(unknown, 49);
  EXPECT_EQ(other, 0);
}

TEST_F(Identity, G07_ReplacingInPlaceUnderTraffic) {
  HttpClient admin = server_->client();
  const std::string folder = temporary_folder();
  rotate_adapter(adapter_path("sql"), folder + "/v1", 1);
  rotate_adapter(adapter_path("sql"), folder + "/v2", 2);
  const auto replace = [&](int version) {
    return admin.post("/v1/load_lora_adapter",
                      {{"lora_name", "live"},
                       {"lora_path", folder + "/v" + std::to_string(version)},
                       {"load_inplace", true}});
  };
  ASSERT_EQ(replace(1).status, 200);
  const TaskRow row = task_rows("sql", 5)[4];
  std::atomic<bool> stop{false};
  std::atomic<int> answers{0}, wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      while (!stop) {
        const HttpAnswer answer = ask(*server_, "live", row.question);
        ++answers;
        wrong += answer.status != 200 || chat_text(answer) != row.answer;
      }
    });
  }
  std::string last;
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(replace(1 + i % 2).status, 200);
    const std::string who = ask(*server_, "live", row.question).json()["system_fingerprint"];
    EXPECT_NE(who, last) << "a request after the answer to the load got the old version";
    last = who;
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0) << "of " << answers;
  EXPECT_EQ(admin.post("/v1/unload_lora_adapter", {{"lora_name", "live"}}).status, 200);
}

TEST_F(Identity, G10_TwoNamesOnePath) {
  HttpClient client = server_->client();
  const TaskRow row = task_rows("sql", 1)[0];
  for (const char* name : {"one", "two"}) {
    ASSERT_EQ(client
                  .post("/v1/load_lora_adapter",
                        {{"lora_name", name}, {"lora_path", adapter_path("sql")}})
                  .status,
              200);
    EXPECT_EQ(chat_text(ask(*server_, name, row.question)), row.answer);
  }
  EXPECT_EQ(client.post("/v1/unload_lora_adapter", {{"lora_name", "one"}}).status, 200);
  EXPECT_EQ(ask(*server_, "one", row.question).status, 404);
  EXPECT_EQ(chat_text(ask(*server_, "two", row.question)), row.answer);
  EXPECT_EQ(client.post("/v1/unload_lora_adapter", {{"lora_name", "two"}}).status, 200);
}

TEST_F(Identity, N01_N02_ModelsShowAdaptersAndAnswersNameThem) {
  const OrderedJson models = server_->client().get("/v1/models").json();
  const std::string base = models["data"][0]["id"];
  int seen = 0;
  for (const OrderedJson& model : models["data"]) {
    if (model["id"] == base) continue;
    EXPECT_EQ(model["parent"], base);
    EXPECT_FALSE(model["root"].get<std::string>().empty());
    ++seen;
  }
  EXPECT_GE(seen, 3);
  OrderedJson body = chat_body("json", task_rows("json", 1)[0].question);
  EXPECT_EQ(server_->client().post("/v1/chat/completions", body).json()["model"], "json");
  body["stream"] = true;
  const StreamAnswer stream = server_->client().stream("/v1/chat/completions", body);
  ASSERT_FALSE(stream.events.empty());
  for (const StreamEvent& event : stream.events)
    EXPECT_EQ(OrderedJson::parse(event.data)["model"], "json");
}

TEST(Slots, H05_H07_FewSlotsManyAdapters) {
  const std::string folder = temporary_folder();
  const TaskRow row = task_rows("sql", 1)[0];
  for (int i = 0; i < 6; ++i)
    rotate_adapter(adapter_path("sql"), folder + "/a" + std::to_string(i), i);
  ServerProcess server({"--lora-dir", folder, "--max-loras", "1", "--max-cpu-loras", "2"});
  ASSERT_TRUE(server.ready()) << server.log();
  std::atomic<int> right{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 6; ++i) {
        const HttpAnswer answer = ask(server, "a" + std::to_string((i + c) % 6), row.question);
        right += answer.status == 200 && chat_text(answer) == row.answer;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 18);
  EXPECT_EQ(ask(server, "a9", row.question).status, 404);
  EXPECT_EQ(ask(server, "../a1", row.question).status, 404);
}

TEST(Slots, O04_FoldersMayGoOnceAnAdapterIsLoaded) {
  const std::string folder = temporary_folder();
  const TaskRow row = task_rows("sql", 1)[0];
  std::vector<std::string> args = {"--max-loras", "1", "--lora-modules"};
  for (int i = 0; i < 3; ++i) {
    const std::string name = "a" + std::to_string(i);
    rotate_adapter(adapter_path("sql"), folder + "/" + name, i);
    args.push_back(name + "=" + folder + "/" + name);
  }
  ServerProcess server(args);
  ASSERT_TRUE(server.ready()) << server.log();
  std::filesystem::remove_all(folder);
  for (int i = 0; i < 6; ++i) {
    const HttpAnswer answer = ask(server, "a" + std::to_string(i % 3), row.question);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(chat_text(answer), row.answer);
  }
}

}  // namespace
}  // namespace lk
