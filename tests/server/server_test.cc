// The whole server over the small model: routes, access, adapters that come and go, the end.
#include "server/server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/routes.h"
#include "tests/sanitizer.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"

namespace lk {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Server, AnswersEveryStatusRoute) {
  TestServer server;
  for (const char* path : {"/health", "/ready", "/ping", "/version", "/metrics", "/load",
                           "/v1/models", "/v1/models/tiny"}) {
    EXPECT_EQ(server.ask(get_request(path)).status, 200) << path;
  }
  EXPECT_EQ(server.ask("HEAD /health HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_EQ(server.ask(get_request("/v1/models/none")).status, 404);
}

TEST(Server, RefusesWhatIsNoRoute) {
  TestServer server;
  const auto unknown = server.ask(get_request("/v2/nothing"));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_TRUE(Json::parse(unknown.body).contains("error"));
  const auto method = server.ask(get_request("/v1/completions"));
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.header("allow"), "POST");
  EXPECT_EQ(server.ask(post_request("/health", "")).header("allow"), "GET");
  const auto packed = server.post("/v1/completions", {{"prompt", "a"}},
                                  std::string(kJson) + "Content-Encoding: gzip\r\n");
  EXPECT_EQ(packed.status, 415);
  EXPECT_NE(packed.body.find("Content-Encoding gzip"), std::string::npos);
}

TEST(Server, TakesTheSameContentTypesEverywhere) {
  ServerOptions options;
  options.allow_runtime_lora = true;
  TestServer server(options);
  int posts = 0;
  for (const Route& route : routes()) {
    if (route.method != "POST" || route.role == Role::kOpen) continue;
    ++posts;
    const std::string path(route.path);
    for (const char* type : {"", "Content-Type: application/json\r\n", "Content-Type:\r\n",
                             "Content-Type: application/json; charset=utf-8\r\n",
                             "Content-Type: Application/JSON ;charset=UTF-8\r\n"}) {
      // The body is read, and refused.
      EXPECT_EQ(server.ask(post_request(path, "[]", type)).status, 400) << path << " " << type;
    }
    for (const char* type :
         {"text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonl",
          "application/json, text/plain", "multipart/form-data; boundary=json"}) {
      const auto answer =
          server.ask(post_request(path, "[]", fmt::format("Content-Type: {}\r\n", type)));
      EXPECT_EQ(answer.status, 415) << path << " " << type;
      EXPECT_NE(answer.body.find(std::string("or absent, not ") + type), std::string::npos)
          << answer.body;
    }
  }
  EXPECT_GE(posts, 7);
}

TEST(Server, TellsWhyAFolderOfTheDirectoryIsNoAdapter) {
  const std::string folder = fs::temp_directory_path() / fmt::format("lk_dir_{}", ::getpid());
  fs::create_directories(folder + "/empty");
  fs::create_directories(folder + "/no_weights");
  fs::copy(adapter_path() + "/adapter_config.json", folder + "/no_weights");
  fs::create_directories(folder + "/pickle");
  fs::copy(adapter_path() + "/adapter_config.json", folder + "/pickle");
  std::ofstream(folder + "/pickle/adapter_model.bin") << "x";
  fs::create_directories(folder + "/broken");
  std::ofstream(folder + "/broken/adapter_config.json") << "{";
  std::ofstream(folder + "/broken/adapter_model.safetensors") << "x";
  std::ofstream(folder + "/a_file") << "x";
  TestServer::directory = folder;
  ServerOptions options;
  options.allow_runtime_lora = true;
  options.paths.roots = {folder};
  {
    TestServer server(options);
    const std::pair<const char*, const char*> cases[] = {
        {"empty", "the folder has no adapter_config.json"},
        {"no_weights", "the folder has no adapter_model.safetensors"},
        {"pickle", "pickles are not opened"},
        {"broken", "adapter_config.json is not valid JSON"},
        {"a_file", "this is a file"}};
    for (const auto& [name, why] : cases) {
      for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses"}) {
        const auto answer = server.post(path, {{"model", name}, {"prompt", "a"}});
        EXPECT_EQ(answer.status, 400) << name;
        const Json error = Json::parse(answer.body)["error"];
        EXPECT_EQ(error["param"], "model");
        const std::string message = error["message"];
        EXPECT_TRUE(message.starts_with(
            fmt::format("adapter '{}' was found in --lora-dir, but cannot be loaded: ", name)))
            << message;
        EXPECT_NE(message.find(why), std::string::npos) << message;
        EXPECT_EQ(message.find(folder), std::string::npos) << message;
      }
      // The same through the route, where the name is said once too.
      const auto loaded = server.post("/v1/load_lora_adapter",
                                      {{"lora_name", name}, {"lora_path", folder + "/" + name}});
      EXPECT_GE(loaded.status, 400);
      EXPECT_LT(loaded.status, 500);
      EXPECT_EQ(loaded.body.find(fmt::format("adapter '{}'", name)), std::string::npos)
          << loaded.body;
    }
    EXPECT_EQ(server.post("/v1/completions", {{"model", "absent"}, {"prompt", "a"}}).status, 404);
  }
  TestServer::directory.clear();
  fs::remove_all(folder);
}

TEST(Server, TellsThePathThatWasMeant) {
  TestServer server;
  const std::pair<const char*, const char*> near[] = {
      {"/chat/completions", "but there is /v1/chat/completions"},
      {"/v1/v1/models", "but there is /v1/models"},
      {"/v1/models/", "but there is /v1/models"},
      {"//v1//models", "but there is /v1/models"},
      {"/v1/tokenize", "but there is /tokenize"},
      {"/v1/embeddings", "there is no path '/v1/embeddings' here\""},
      {"/", "there is no path '/' here\""}};
  for (const auto& [path, meant] : near) {
    const auto answer = server.ask(get_request(path));
    EXPECT_EQ(answer.status, 404);
    EXPECT_NE(answer.body.find(meant), std::string::npos) << answer.body;
  }
}

TEST(Server, LetsBrowsersIn) {
  TestServer server;
  const auto preflight = server.ask(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: http://page\r\n"
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type\r\n\r\n");
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.header("access-control-allow-origin"), "*");
  EXPECT_EQ(preflight.header("access-control-allow-headers"), "authorization,content-type");
  EXPECT_EQ(server.ask(get_request("/health", "Origin: http://page\r\n"))
                .header("access-control-allow-origin"),
            "*");
  EXPECT_EQ(server.ask(get_request("/health")).header("access-control-allow-origin"), "");
}

TEST(BugCases, W06_EveryInferenceRouteNeedsTheKey) {
  EXPECT_EQ(ServerOptions().http.host, "127.0.0.1");
  ServerOptions options;
  options.keys.infer = {"secret"};
  options.allow_runtime_lora = true;
  TestServer server(options);
  for (const char* path : {"/v1/models", "/v1/models/tiny"}) {
    EXPECT_EQ(server.ask(get_request(path)).status, 401) << path;
    EXPECT_EQ(server.ask(get_request(path, "Authorization: Bearer secret\r\n")).status, 200);
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize",
                           "/detokenize", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    for (const char* key : {"", "Authorization: Bearer wrong\r\n", "Authorization: secret\r\n"}) {
      const auto answer =
          server.post(path, {{"prompt", "a"}, {"max_tokens", 1}}, std::string(kJson) + key);
      EXPECT_EQ(answer.status, 401) << path;
      EXPECT_EQ(answer.header("www-authenticate"), "Bearer");
      EXPECT_EQ(answer.body.find("secret"), std::string::npos);
    }
  }
  EXPECT_EQ(server
                .post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}},
                      std::string(kJson) + "Authorization: Bearer secret\r\n")
                .status,
            200);
  EXPECT_EQ(server.ask(get_request("/health")).status, 200);
}

TEST(BugCases, N06_LoadingThatIsOffSaysHowToTurnItOn) {
  TestServer server;
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    const auto answer = server.post(path, {{"lora_name", "a"}, {"lora_path", adapter_path()}});
    EXPECT_EQ(answer.status, 403);
    EXPECT_NE(answer.body.find("--allow-runtime-lora"), std::string::npos);
  }
}

TEST(Server, LoadsAndUnloadsAdapters) {
  ServerOptions options;
  options.allow_runtime_lora = true;
  TestServer server(options);
  const std::string path = adapter_path();
  const Json load = {{"lora_name", "sql"}, {"lora_path", path}};
  const Json ask = {{"model", "sql"}, {"prompt", "a"}, {"max_tokens", 2}};
  EXPECT_EQ(server.post("/v1/completions", ask).status, 404);
  const auto loaded = server.post("/v1/load_lora_adapter", load);
  EXPECT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_EQ(loaded.body, "Success: LoRA adapter 'sql' added successfully.");
  EXPECT_NE(server.ask(get_request("/v1/models")).body.find("\"sql\""), std::string::npos);
  const auto answer = server.post("/v1/completions", ask);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Json::parse(answer.body)["model"], "sql");
  EXPECT_EQ(server.metric("lorikeet:lora_requests_total"), 1);

  const auto twice = server.post("/v1/load_lora_adapter", load);
  EXPECT_EQ(twice.status, 400);
  EXPECT_NE(twice.body.find("has already been loaded"), std::string::npos);
  Json in_place = load;
  in_place["load_inplace"] = true;
  EXPECT_EQ(server.post("/v1/load_lora_adapter", in_place).status, 200);

  const auto unloaded = server.post("/v1/unload_lora_adapter", {{"lora_name", "sql"}});
  EXPECT_EQ(unloaded.body, "Success: LoRA adapter 'sql' removed successfully.");
  EXPECT_EQ(server.ask(get_request("/v1/models")).body.find("\"sql\""), std::string::npos);
  EXPECT_EQ(server.metric("lorikeet:lora_requests_total"), -1);
  const auto gone = server.post("/v1/unload_lora_adapter", {{"lora_name", "sql"}});
  EXPECT_EQ(gone.status, 404);
  EXPECT_NE(gone.body.find("The lora adapter 'sql' cannot be found."), std::string::npos);
  EXPECT_EQ(server.post("/v1/completions", ask).status, 404);
}

// The engine's slot is the last that holds it, and nothing wakes an idle engine by itself.
TEST(Server, UnloadingFreesMemoryOfAnIdleEngine) {
  ServerOptions options;
  options.allow_runtime_lora = true;
  TestServer server(options);
  ASSERT_EQ(
      server.post("/v1/load_lora_adapter", {{"lora_name", "sql"}, {"lora_path", adapter_path()}})
          .status,
      200);
  const Json ask = {{"model", "sql"}, {"prompt", "a"}, {"max_tokens", 2}};
  ASSERT_EQ(server.post("/v1/completions", ask).status, 200);
  EXPECT_GT(server.metric("lorikeet:loras_resident_bytes"), 0);
  server.post("/v1/unload_lora_adapter", {{"lora_name", "sql"}});
  double bytes = 1;
  for (int i = 0; i < 500 && bytes != 0; ++i) {
    bytes = server.metric("lorikeet:loras_resident_bytes");
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(bytes, 0);
}

// One place in memory, and requests that end with the step that began them.
TEST(Server, AnIdleEngineGivesUpTheOnlyPlace) {
  TestServer::directory = kModel + "/adapters";
  TestServer::max_resident = 1;
  {
    TestServer server;
    for (const char* name : {"sql", "json", "math", "sql"}) {
      const auto answer =
          server.post("/v1/completions", {{"model", name}, {"prompt", "a"}, {"max_tokens", 1}});
      EXPECT_EQ(answer.status, 200) << name;
    }
  }
  TestServer::directory.clear();
  TestServer::max_resident = 0;
}

TEST(Server, TellsQueueAndStepsAsVllmDoes) {
  TestServer server;
  const Json ask = {{"prompt", "a b c"}, {"max_tokens", 4}, {"ignore_eos", true}};
  ASSERT_EQ(server.post("/v1/completions", ask).status, 200);
  EXPECT_EQ(server.metric("vllm:request_queue_time_seconds_count"), 1);
  const double steps = server.metric("vllm:iteration_tokens_total_count");
  EXPECT_GE(steps, 4);
  EXPECT_EQ(server.metric("vllm:iteration_tokens_total_sum"),
            server.metric("vllm:prompt_tokens_total") + 3);
  const std::string text = server.ask(get_request("/metrics")).body;
  EXPECT_NE(text.find("waiting_lora_adapters=\"\""), std::string::npos);
}

TEST(Server, RefusesLoadsThatCannotBe) {
  ServerOptions options;
  options.allow_runtime_lora = true;
  TestServer server(options);
  const std::pair<Json, int> cases[] = {
      {{{"lora_path", "x"}}, 400},
      {{{"lora_name", "x"}}, 400},
      {{{"lora_name", ""}, {"lora_path", "x"}}, 400},
      {{{"lora_name", 5}, {"lora_path", "x"}}, 400},
      {{{"lora_name", "tiny"}, {"lora_path", adapter_path()}}, 400},
      {{{"lora_name", "x"}, {"lora_path", adapter_path()}, {"load_inplace", "yes"}}, 400},
      {{{"lora_name", "x"}, {"lora_path", kModel + "/adapters/none"}}, 404},
      {{{"lora_name", "x"}, {"lora_path", kModel + "/adapters"}}, 404},
      {{{"lora_name", "x"}, {"lora_path", kModel}}, 403},
      {{{"lora_name", "x"}, {"lora_path", "/etc"}}, 403},
  };
  for (const auto& [body, status] : cases) {
    const auto answer = server.post("/v1/load_lora_adapter", body);
    if (status == 404) {
      EXPECT_TRUE(answer.status == 404 || answer.status == 400) << answer.body;
    } else {
      EXPECT_EQ(answer.status, status) << body << answer.body;
    }
    EXPECT_TRUE(Json::parse(answer.body).contains("error"));
  }
}

TEST(BugCases, U01_TheEngineIsFreeAgainWhenAClientGoes) {
  TestServer server;
  for (const bool stream : {false, true}) {
    RawClient client(server.port);
    const Json body = {
        {"prompt", "a"}, {"max_tokens", 900}, {"ignore_eos", true}, {"stream", stream}};
    ASSERT_TRUE(client.send(post_request("/v1/completions", body.dump(), kJson)));
    for (int i = 0; i < 500 && server.metric("vllm:num_requests_running") < 1; ++i) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    stream ? client.reset() : client.close();
    const auto start = std::chrono::steady_clock::now();
    while (server.metric("vllm:num_requests_running") > 0 &&
           std::chrono::steady_clock::now() - start < seconds(5) * test::kPatience) {
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2) * test::kPatience);
  }
}

TEST(Server, AnswersClientsThatSendNoMore) {
  TestServer server;
  for (const bool stream : {false, true}) {
    RawClient client(server.port);
    const Json body = {
        {"prompt", "a"}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", stream}};
    ASSERT_TRUE(client.send(post_request("/v1/completions", body.dump(), kJson)));
    client.half_close();
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 200);
    if (stream) {
      EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    } else {
      EXPECT_EQ(Json::parse(answer.body)["usage"]["completion_tokens"], 200);
    }
    EXPECT_TRUE(client.closed_within(seconds(5)));
  }
}

TEST(Server, DrainsBeforeItEnds) {
  TestServer server;
  RawClient running(server.port);
  const Json body = {{"prompt", "a"}, {"max_tokens", 300}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_TRUE(running.send(post_request("/v1/completions", body.dump(), kJson)));
  ASSERT_NE(running.read_until("data: "), "");
  server.server().shut_down();
  while (server.ask(get_request("/ready")).status == 200) {
  }
  EXPECT_EQ(server.ask(get_request("/health")).status, 200);
  const auto refused = server.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.header("retry-after"), "");
  EXPECT_NE(running.read_until("data: [DONE]", seconds(30)).find("[DONE]"), std::string::npos);
  server.stop();
  EXPECT_TRUE(server.whole);
}

TEST(Server, CutsADrainThatTakesTooLong) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(100);
  TestServer server(options);
  RawClient running(server.port);
  const Json body = {{"prompt", "a"}, {"max_tokens", 1000}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_TRUE(running.send(post_request("/v1/completions", body.dump(), kJson)));
  ASSERT_NE(running.read_until("data: "), "");
  server.stop();
  EXPECT_FALSE(server.whole);
  EXPECT_NE(running.read_until("0\r\n\r\n").find("shut down"), std::string::npos);
}

// The shared model, whose steps and device may be others.
class StandInModel : public Model {
 public:
  const ModelInfo& info() const override { return model_.info(); }
  const LinearTable& linears() const override { return model_.linears(); }
  const Kernels& kernels() const override { return model_.kernels(); }
  const KvLayout& kv_layout() const override { return model_.kv_layout(); }
  std::shared_ptr<const PreparedAdapter> prepare_adapter(
      std::shared_ptr<const Adapter> adapter) const override {
    return model_.prepare_adapter(std::move(adapter));
  }
  void set_slot(int slot, std::shared_ptr<const PreparedAdapter> adapter) override {
    model_.set_slot(slot, std::move(adapter));
  }
  void forward(const Batch& batch, KvCache& cache, float* logits,
               const ForwardTrace& trace) override {
    if (before_step) before_step(++steps_);
    model_.forward(batch, cache, logits, trace);
  }
  Device& device() const override { return *computes_on; }

  std::function<void(int step)> before_step;
  Device* computes_on = &host_device();

 private:
  Model& model_ = shared_model();
  int steps_ = 0;
};

// The CPU, until it is lost.
class LosableDevice : public Device {
 public:
  std::string_view name() const override { return host_.name(); }
  bool is_host() const override { return true; }
  void* allocate(size_t bytes, MemoryUse use) override { return host_.allocate(bytes, use); }
  void release(void* data, size_t bytes, MemoryUse use) noexcept override {
    host_.release(data, bytes, use);
  }
  size_t allocated(MemoryUse use) const override { return host_.allocated(use); }
  size_t free_memory() const override { return host_.free_memory(); }
  void upload(void* to, const void* from, size_t bytes) override { host_.upload(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { host_.copy(to, from, bytes); }
  void clear(void* to, size_t bytes) override { host_.clear(to, bytes); }
  void download(void* to, const void* from, size_t bytes) override {
    host_.download(to, from, bytes);
  }
  void synchronize() override {}
  void check() override {
    ++checks;
    if (lost) throw DeviceError("the GPU failed: it fell off the bus");
  }
  void fill(void* to, size_t bytes, size_t granule, const Make& make) override {
    host_.fill(to, bytes, granule, make);
  }
  void run_recorded(uint64_t key, const std::function<void()>& work) override {
    host_.run_recorded(key, work);
  }

  std::atomic<bool> lost = false;
  std::atomic<int> checks = 0;

 private:
  Device& host_ = host_device();
};

TEST(Server, EndsWhenItsDeviceFails) {
  StandInModel model;
  model.before_step = [](int step) {
    if (step == 3) throw DeviceError("the GPU failed: it fell off the bus");
  };
  TestServer server({}, model);
  const auto answer =
      server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 100}, {"ignore_eos", true}});
  EXPECT_EQ(answer.status, 500);
  EXPECT_NE(answer.body.find("it fell off the bus"), std::string::npos) << answer.body;
  server.wait();
  EXPECT_FALSE(server.whole);
}

// Who drains and loses the device did not answer all.
TEST(Server, EndsCutShortWhenItsDeviceFailsInADrain) {
  std::atomic<bool> draining = false;
  StandInModel model;
  model.before_step = [&](int) {
    if (draining) throw DeviceError("the GPU failed: it fell off the bus");
  };
  TestServer server({}, model);
  RawClient running(server.port);
  const Json body = {{"prompt", "a"}, {"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_TRUE(running.send(post_request("/v1/completions", body.dump(), kJson)));
  ASSERT_NE(running.read_until("data: "), "");
  server.server().shut_down();
  while (server.ask(get_request("/ready")).status == 200) {
  }
  draining = true;
  EXPECT_NE(running.read_until("0\r\n\r\n", seconds(30)).find("fell off the bus"),
            std::string::npos);
  server.stop();
  EXPECT_FALSE(server.whole);
}

TEST(Server, EndsWhenItsDeviceIsLostWithNothingToDo) {
  LosableDevice device;
  StandInModel model;
  model.computes_on = &device;
  TestServer server({}, model);
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}}).status, 200);
  for (const int before = device.checks; device.checks < before + 3;)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(server.ask(get_request("/health")).status, 200);
  device.lost = true;
  server.wait();
  EXPECT_FALSE(server.whole);
}

TEST(Server, EndsWhenAStepTakesForEver) {
  std::atomic<bool> answered = false;
  StandInModel model;
  model.before_step = [&](int step) {
    while (step >= 3 && !answered) std::this_thread::sleep_for(milliseconds(1));
  };
  ServerOptions options;
  options.stuck_after = milliseconds(200);
  options.end_if_stuck = true;
  TestServer server(options, model);
  const auto answer =
      server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 100}, {"ignore_eos", true}});
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("a step of the engine has been running"), std::string::npos)
      << answer.body;
  answered = true;
  server.wait();
  EXPECT_FALSE(server.whole);
}

TEST(Server, HoldsThousandsOfIdleConnections) {
  raise_file_limit();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  // Both ends are in this process.
  const size_t count = std::min<size_t>(10'000, (limit.rlim_cur - 200) / 2);
  TestServer server;
  std::vector<std::unique_ptr<RawClient>> idle;
  for (size_t i = 0; i < count; ++i) {
    idle.push_back(std::make_unique<RawClient>(server.port));
    ASSERT_TRUE(idle.back()->connected()) << i;
  }
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
  EXPECT_GE(server.metric("lorikeet:http_connections"), static_cast<double>(count));
  idle.clear();
  for (int i = 0; i < 500 && server.metric("lorikeet:http_connections") > 1; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(server.metric("lorikeet:http_connections"), 1);
}

}  // namespace
}  // namespace lk
