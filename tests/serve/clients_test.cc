// What real and hostile clients do to a server. Names follow docs/bug-cases.md.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/serve/server_process.h"

namespace lk {
namespace {

OrderedJson long_body(int tokens, bool stream) {
  return {{"model", "sql"},       {"prompt", "Count the flights."},
          {"max_tokens", tokens}, {"ignore_eos", true},
          {"temperature", 1},     {"stream", stream}};
}

class Clients : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess({"--lora-modules", "sql=" + adapter_path("sql"),
                                 "json=" + adapter_path("json"), "--max-num-seqs", "8",
                                 "--allow-runtime-lora", "--lora-root",
                                 std::filesystem::temp_directory_path().string()});
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  void SetUp() override { ASSERT_TRUE(server_->ready()) << server_->log(); }
  // After each test the server is as good as new.
  void TearDown() override {
    EXPECT_TRUE(comes_true(3, [] { return idle(); }));
    const TaskRow row = task_rows("sql", 1)[0];
    const HttpAnswer answer =
        server_->client(20).post("/v1/chat/completions", chat_body("sql", row.question));
    EXPECT_EQ(chat_text(answer), row.answer) << answer.status << answer.body;
  }
  static bool idle() {
    return server_->metric("vllm:num_requests_running") == 0 &&
           server_->metric("vllm:num_requests_waiting") == 0;
  }
  static ServerProcess* server_;
};
ServerProcess* Clients::server_ = nullptr;

TEST_F(Clients, U01_AClientThatLeavesEndsItsWork) {
  for (const bool reset : {false, true}) {
    server_->client().stream(
        "/v1/completions", long_body(1500, true),
        [](const StreamAnswer& answer) { return answer.events.size() < 5; }, reset);
    EXPECT_TRUE(comes_true(2, [] { return idle(); })) << "stream, reset " << reset;
    // Without a stream: the client closes while the answer is being computed.
    const int fd = connect_loopback(server_->port(), 5);
    const std::string body = long_body(1500, false).dump();
    const std::string text =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_TRUE(comes_true(5, [] { return server_->metric("vllm:num_requests_running") == 1; }));
    if (reset) {
      const linger hard{1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close(fd);
    EXPECT_TRUE(comes_true(2, [] { return idle(); })) << "whole, reset " << reset;
  }
}

TEST_F(Clients, U01_LeavingTheQueue) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 24; ++i) {
    clients.emplace_back([] {
      server_->client().stream("/v1/completions", long_body(1500, true),
                               [](const StreamAnswer&) { return false; });
    });
  }
  // Some never get an event: they leave while they wait.
  std::vector<int> waiting;
  const std::string body = long_body(1500, true).dump();
  for (int i = 0; i < 8; ++i) {
    const int fd = connect_loopback(server_->port(), 5);
    const std::string text = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n\r\n" + body;
    EXPECT_GT(write(fd, text.data(), text.size()), 0);
    waiting.push_back(fd);
  }
  for (int fd : waiting) close(fd);
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(comes_true(5, [] { return idle(); }));
}

TEST_F(Clients, U04_LeavingAtTheLastToken) {
  const double free_before = server_->metric("vllm:kv_cache_usage_perc");
  std::mt19937 random(3);
  for (int i = 0; i < 150; ++i) {
    const size_t tokens = 1 + random() % 5;
    server_->client().stream(
        "/v1/completions", long_body(static_cast<int>(tokens), true),
        [&](const StreamAnswer& answer) { return answer.events.size() < tokens; },
        random() % 2 == 0);
  }
  EXPECT_TRUE(comes_true(2, [] { return idle(); }));
  EXPECT_NEAR(server_->metric("vllm:kv_cache_usage_perc"), free_before, 1e-9);
}

TEST_F(Clients, V01_RubbishOnThePort) {
  std::mt19937 random(11);
  const size_t before = server_->resident_bytes();
  std::vector<std::string> rubbish = {
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
      "GET\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: "
      "chunked\r\n\r\nhello",
      "GET /health HTTP/9.9\r\n\r\n",
      "GET " + std::string(100000, 'a') + " HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\n" + std::string(200000, 'x') + ": y\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGARBAGE\r\n\r\nGET /health HTTP/1.1\r\n\r\n"};
  for (int i = 0; i < 40; ++i) {
    std::string bytes(random() % 3000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    rubbish.push_back(bytes + "\r\n\r\n");
  }
  for (const std::string& bytes : rubbish) {
    const std::string answer = send_raw(server_->port(), bytes, 0.3);
    if (!answer.empty()) {
      EXPECT_TRUE(answer.starts_with("HTTP/1.")) << answer.substr(0, 80);
    }
    EXPECT_EQ(answer.find("HTTP/1.1 5"), std::string::npos) << answer.substr(0, 200);
  }
  EXPECT_EQ(server_->client(5).get("/health").status, 200);
  EXPECT_LT(server_->resident_bytes(), before + (32 << 20) + test::kKeptFreed);
}

TEST_F(Clients, V01_ThousandsOfIdleConnections) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const int count = static_cast<int>(std::min<rlim_t>(10000, files.rlim_cur - 200));
  std::vector<int> idle;
  for (int i = 0; i < count; ++i) {
    const int fd = connect_loopback(server_->port(), 5);
    if (fd < 0) break;
    idle.push_back(fd);
  }
  EXPECT_EQ(static_cast<int>(idle.size()), count);
  const TaskRow row = task_rows("sql", 1)[0];
  const auto begin = std::chrono::steady_clock::now();
  const HttpAnswer answer =
      server_->client(20).post("/v1/chat/completions", chat_body("sql", row.question));
  EXPECT_EQ(chat_text(answer), row.answer);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10) * test::kPatience);
  for (int fd : idle) close(fd);
}

TEST_F(Clients, ASlowSenderHoldsNobodyUp) {
  const std::string body = chat_body("sql", "x").dump();
  const std::string text = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body;
  std::atomic<bool> stop{false};
  std::thread slow([&] {
    const int fd = connect_loopback(server_->port(), 1);
    for (char c : text) {
      if (stop || send(fd, &c, 1, MSG_NOSIGNAL) != 1) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    close(fd);
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(server_->client(10).get("/health").status, 200);
  const TaskRow row = task_rows("json", 1)[0];
  EXPECT_EQ(
      chat_text(server_->client(20).post("/v1/chat/completions", chat_body("json", row.question))),
      row.answer);
  stop = true;
  slow.join();
}

TEST_F(Clients, HugeAndBrokenBodies) {
  HttpClient client = server_->client(30);
  const auto refused = [&](const std::string& body, const char* what) {
    const HttpAnswer answer = client.post_text("/v1/chat/completions", body);
    EXPECT_GE(answer.status, 400) << what;
    EXPECT_LT(answer.status, 500) << what << " " << answer.body.substr(0, 200);
    EXPECT_TRUE(answer.json().contains("error")) << what << answer.body.substr(0, 200);
  };
  refused("", "empty");
  refused("{", "cut");
  refused("[]", "a list");
  refused("{\"model\": \"sql\", \"messages\": \"\xff\xfe\"}", "not UTF-8");
  refused(std::string(100000, '['), "deep");
  std::string deep = "{\"model\":\"sql\",\"messages\":[{\"role\":\"user\",\"content\":";
  for (int i = 0; i < 20000; ++i) deep += "{\"a\":";
  refused(deep, "deep objects");
  OrderedJson body = chat_body("sql", std::string(8 << 20, 'a'));
  refused(body.dump(), "8 MB prompt");
  const HttpAnswer beyond = client.post_text("/v1/chat/completions", std::string(80 << 20, ' '));
  EXPECT_TRUE(beyond.status == 413 || beyond.status == 0) << beyond.status;
}

TEST_F(Clients, V08_ManySettingsInOneBatch) {
  std::atomic<int> good{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([&, i] {
      OrderedJson body = chat_body(i % 3 == 0 ? "sql" : "json", "Count the Monday flights.", 12);
      body["temperature"] = 0.1 * (i % 20);
      body["top_p"] = 0.5 + 0.015 * i;
      body["top_k"] = i;
      body["seed"] = i;
      body["presence_penalty"] = (i % 5) * 0.3;
      body["frequency_penalty"] = (i % 7) * 0.1;
      if (i % 4 == 0) body["logprobs"] = true;
      if (i % 5 == 0) body["stop"] = {"a", "FROM"};
      if (i % 6 == 0) body["n"] = 2;
      good += server_->client().post("/v1/chat/completions", body).status == 200;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 32);
}

TEST_F(Clients, V09_LengthsAroundEveryBorder) {
  const int context = server_->client().get("/v1/models").json()["data"][0]["max_model_len"];
  std::vector<int> lengths = {1, 2, context - 2, context - 1, context, context + 1};
  for (int border : {16, 32, 64, 128, 512}) {
    for (int step : {-1, 0, 1}) lengths.push_back(border + step);
  }
  for (int length : lengths) {
    const OrderedJson body = {{"model", "sql"},
                              {"prompt", std::vector<int>(static_cast<size_t>(length), 300)},
                              {"max_tokens", 1},
                              {"temperature", 0}};
    const HttpAnswer answer = server_->client().post("/v1/completions", body);
    EXPECT_EQ(answer.status, length + 1 <= context ? 200 : 400) << length << answer.body;
    if (answer.status == 400) {
      EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
    }
  }
}

TEST_F(Clients, O01_BadAdaptersWhileOthersAreServed) {
  const std::string folder = temporary_folder();
  std::ifstream in(adapter_path("sql") + "/adapter_model.safetensors", std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto make = [&](const std::string& name, const std::string& bytes, bool config = true) {
    const std::string path = folder + "/" + name;
    std::filesystem::create_directories(path);
    std::ofstream(path + "/adapter_model.safetensors", std::ios::binary) << bytes;
    if (config)
      std::filesystem::copy_file(adapter_path("sql") + "/adapter_config.json",
                                 path + "/adapter_config.json");
    return path;
  };
  std::string lies = good;
  lies[6] = '\x7f';
  const std::vector<std::string> bad = {
      make("empty", ""), make("cut", good.substr(0, good.size() / 2)), make("lies", lies),
      make("bare", good, false), folder + "/nowhere"};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread traffic([&] {
    const TaskRow row = task_rows("json", 1)[0];
    while (!stop)
      wrong += chat_text(server_->client().post("/v1/chat/completions",
                                                chat_body("json", row.question))) != row.answer;
  });
  for (const std::string& path : bad) {
    const HttpAnswer answer = server_->client(5).post("/v1/load_lora_adapter",
                                                      {{"lora_name", "bad"}, {"lora_path", path}});
    EXPECT_GE(answer.status, 400) << path;
    EXPECT_LT(answer.status, 500) << path << answer.body;
    EXPECT_EQ(server_->client().post("/v1/chat/completions", chat_body("bad", "x", 1)).status, 404);
  }
  stop = true;
  traffic.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Clients, AnAdapterThatChangesWhileItIsRead) {
  const std::string folder = temporary_folder() + "/moving";
  rotate_adapter(adapter_path("sql"), folder, 1);
  const std::string file = folder + "/adapter_model.safetensors";
  const auto size = std::filesystem::file_size(file);
  std::atomic<bool> stop{false};
  std::thread vandal([&] {
    for (int i = 0; !stop; ++i) {
      std::error_code ignored;
      if (i % 2 == 0) {
        std::filesystem::resize_file(file, size / 3, ignored);
      } else {
        rotate_adapter(adapter_path("sql"), folder, i % 7);
      }
    }
  });
  int loaded = 0, refused = 0;
  for (int i = 0; i < 15; ++i) {
    const int status =
        server_->client(20)
            .post("/v1/load_lora_adapter",
                  {{"lora_name", "moving"}, {"lora_path", folder}, {"load_inplace", true}})
            .status;
    ++(status == 200 ? loaded : refused);
    EXPECT_TRUE(status == 200 || (status >= 400 && status < 500)) << status;
  }
  stop = true;
  vandal.join();
  std::printf("%d loaded, %d refused\n", loaded, refused);
}

TEST(Process, ComesBackAfterAKillAndDrainsOnTerm) {
  const TaskRow row = task_rows("sql", 1)[0];
  const std::vector<std::string> args = {"--lora-modules", "sql=" + adapter_path("sql")};
  for (int round = 0; round < 3; ++round) {
    ServerProcess server(args);
    ASSERT_TRUE(server.ready()) << server.log();
    std::thread client([&] { server.client(20).stream("/v1/completions", long_body(1500, true)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * round));
    server.signal(SIGKILL);
    client.join();
    EXPECT_EQ(server.wait(5), 128 + SIGKILL);
  }
  ServerProcess server(args);
  ASSERT_TRUE(server.ready()) << server.log();
  StreamAnswer running;
  std::atomic<bool> started{false};
  std::thread client([&] {
    running = server.client(30).stream("/v1/completions", long_body(300, true),
                                       [&](const StreamAnswer&) { return started = true; });
  });
  ASSERT_TRUE(comes_true(10, [&] { return started.load(); }));
  server.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const HttpAnswer late = server.client(5).post("/v1/chat/completions", chat_body("sql", "x", 1));
  if (late.status != 0) {  // the running stream may have ended already
    EXPECT_EQ(late.status, 503);
    EXPECT_FALSE(late.header("retry-after").empty());
  }
  client.join();
  EXPECT_TRUE(running.done) << "the running stream was cut";
  EXPECT_EQ(server.wait(10), 0);
}

}  // namespace
}  // namespace lk
