// An HTTP server on a free port of the loopback, its loop on a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "server/http/http_server.h"
#include "tests/sanitizer.h"

namespace lk {

class HttpFixture {
 public:
  HttpFixture(
      HttpOptions options, HttpServer::Handler handler,
      HttpServer::WantsBody wants_body = [](const HttpRequest&) { return true; }) {
    options.port = 0;
    server_ =
        std::make_unique<HttpServer>(loop_, options, std::move(wants_body), std::move(handler));
    const Status good = server_->listen();
    EXPECT_TRUE(good) << good.error().message;
    port_ = server_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~HttpFixture() {
    loop_.stop();
    thread_.join();
  }

  int port() const { return port_; }
  IoLoop& loop() { return loop_; }
  HttpServer& server() { return *server_; }
  // Runs on the loop's thread; waits for it.
  template <typename Function>
  auto on_loop(Function function) {
    std::promise<decltype(function())> done;
    loop_.post([&] { done.set_value(function()); });
    return done.get_future().get();
  }
  HttpCounters counters() {
    return on_loop([this] { return server_->counters(); });
  }

 private:
  IoLoop loop_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  int port_ = 0;
};

// Tells the method, the path and the body.
inline void echo(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  exchange->reply(200, "text/plain", request.method + " " + request.path + " " + request.body);
}

// Time limits, here and of RawClient, are test::kPatience times as long.
inline bool wait_for(const std::function<bool()>& good,
                     std::chrono::milliseconds limit = std::chrono::seconds(5)) {
  const auto deadline = std::chrono::steady_clock::now() + limit * test::kPatience;
  while (!good()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace lk
