// The whole server over the small model, in the test's process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "engine/vocabulary.h"
#include "server/server.h"
#include "tests/server/raw_client.h"

namespace lk {

inline const std::string kModel = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";
inline constexpr const char* kJson = "Content-Type: application/json\r\n";

inline Model& shared_model() {
  static const std::unique_ptr<Model> model = *Model::load(kModel, {});
  return *model;
}

class TestServer {
 public:
  explicit TestServer(ServerOptions options = {}, Model& model = shared_model()) {
    served_.names = {"tiny"};
    served_.root = kModel;
    served_.info = model.info();
    served_.tokenizer = *Tokenizer::load(kModel + "/tokenizer.json");
    EngineOptions engine_options;
    engine_options.max_sequences = 8;
    engine_options.max_model_len = 1024;
    engine_options.check_device_every = std::chrono::milliseconds(50);
    auto engine = Engine::create(model, make_vocabulary(served_.tokenizer, served_.info.vocab),
                                 engine_options);
    EXPECT_TRUE(engine) << engine.error().message;
    served_.max_model_len = (*engine)->max_model_len();
    AdapterStoreOptions store;
    store.directory = directory;
    store.max_resident = max_resident;
    options.http.port = 0;
    options.paths.roots.push_back(kModel + "/adapters");
    server_ =
        std::make_unique<Server>(served_, std::move(*engine),
                                 std::make_unique<AdapterStore>(model, store), std::move(options));
    const Status good = server_->listen();
    EXPECT_TRUE(good) << good.error().message;
    const std::string address = server_->address();
    port = std::stoi(address.substr(address.rfind(':') + 1));
    thread_ = std::thread([this] { whole = server_->run(); });
  }
  ~TestServer() { stop(); }

  // Until the server ends by itself.
  void wait() { thread_.join(); }
  void stop() {
    if (!thread_.joinable()) return;
    server_->shut_down();
    thread_.join();
  }
  Server& server() { return *server_; }

  RawClient::Answer ask(const std::string& request) {
    RawClient client(port);
    EXPECT_TRUE(client.send(request));
    return client.answer();
  }
  RawClient::Answer post(const std::string& path, const Json& body,
                         const std::string& headers = kJson) {
    return ask(post_request(path, body.dump(), headers));
  }
  double metric(const std::string& name) {
    const std::string text = ask(get_request("/metrics")).body;
    const size_t at = text.find("\n" + name + "{");
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(text.find("} ", at) + 2));
  }

  static inline std::string directory;
  static inline int max_resident = 0;
  int port = 0;
  bool whole = false;

 private:
  ServedModel served_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

inline std::string adapter_path() {
  for (const auto& entry : std::filesystem::directory_iterator(kModel + "/adapters")) {
    if (std::filesystem::exists(entry.path() / "adapter_config.json")) return entry.path().string();
  }
  return {};
}

}  // namespace lk
