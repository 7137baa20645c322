// A small blocking HTTP/1.1 client for loopback. For tests only; one object per thread.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "tests/sanitizer.h"

namespace lk {

struct HttpAnswer {
  int status = 0;  // 0: no whole answer came
  std::string head, body;
  OrderedJson json() const;  // null if the body is not JSON
  std::string header(const std::string& name) const;
};

// One event of a stream, with the time at which it arrived.
struct StreamEvent {
  std::chrono::steady_clock::time_point at;
  std::string data;
};

struct StreamAnswer {
  int status = 0;
  std::string head, body;  // body: everything, also of an answer that does not stream
  std::vector<StreamEvent> events;
  bool done = false;  // "[DONE]" came
  // The pieces of text of choice `index`, joined (completions and chat).
  std::string text(int index = 0) const;
  // Of the last event that has one.
  std::string finish_reason(int index = 0) const;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

class HttpClient {
 public:
  // Time limits, here and below, are test::kPatience times as long.
  explicit HttpClient(int port, double timeout_seconds = 120)
      : port_(port), timeout_(timeout_seconds * test::kPatience) {}

  HttpAnswer get(const std::string& path, const Headers& headers = {});
  HttpAnswer post(const std::string& path, const OrderedJson& body, const Headers& headers = {});
  HttpAnswer post_text(const std::string& path, const std::string& body,
                       const Headers& headers = {});
  // `go_on` is asked after each event; false closes the connection (with a reset if `reset`).
  StreamAnswer stream(const std::string& path, const OrderedJson& body,
                      const std::function<bool(const StreamAnswer&)>& go_on = {},
                      bool reset = false);

 private:
  HttpAnswer exchange(const std::string& method, const std::string& path, const std::string& body,
                      const Headers& headers);
  int port_;
  double timeout_;
};

// A connected socket, or -1.
int connect_loopback(int port, double timeout_seconds);
// Sends `bytes` and reads until the peer closes or `seconds` have passed without a byte.
std::string send_raw(int port, const std::string& bytes, double seconds);

}  // namespace lk
