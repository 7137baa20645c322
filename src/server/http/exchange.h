// One HTTP request and its answer. Made by the connection, shared with whoever answers; used on the
// server's I/O thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lk {

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // decoded, without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string header(const std::string& name) const;  // lower case; empty if absent
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual const std::string& id() const = 0;  // of the request, in logs and x-request-id

  // The whole answer. Exactly one of `reply` and `begin_events` is called; nothing happens if the
  // client has gone.
  virtual void reply(int status, std::string content_type, std::string body,
                     HttpHeaders headers = {}) = 0;
  // Server-sent events: the head goes out with the first data. `write` takes ready SSE text
  // ("data: ...\n\n"), several events at once if there are several.
  virtual void begin_events() = 0;
  virtual void write(std::string events) = 0;
  virtual void end_events() = 0;

  // Bytes that the client has not taken yet.
  virtual size_t backlog() const = 0;
  // Called once if the client goes before the answer is complete. Not called after that.
  virtual void on_gone(std::function<void()> gone) = 0;
  // Called each time that the backlog falls to 0 while events are being written.
  virtual void on_drained(std::function<void()> drained) = 0;
};

}  // namespace lk
