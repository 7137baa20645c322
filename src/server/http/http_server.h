// Listens and speaks HTTP/1.1: connections, limits, deadlines, server-sent events. Everything runs
// on the loop's thread; owned by whoever owns the loop, which must outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http/exchange.h"
#include "server/http/io_loop.h"

namespace lk {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: a free one
  size_t header_limit = 16 << 10;
  size_t body_limit = 64 << 20;     // of one request, chunked or not
  size_t bodies_limit = 512 << 20;  // of all requests that are being read or answered
  // A request's head, from its first byte; its body; a connection between requests; and a client
  // that takes no byte of its answer.
  std::chrono::milliseconds header_timeout{10'000}, body_timeout{120'000}, idle_timeout{180'000},
      stall_timeout{120'000};
  int send_buffer = 0;  // SO_SNDBUF; 0: the system's
  // Server-sent events of a stream wait for each other for up to this long, its first and last not.
  std::chrono::microseconds send_interval{8'000};
};

struct HttpCounters {
  size_t connections = 0;       // open
  size_t exchanges = 0;         // being answered
  uint64_t accepted = 0;        // connections so far
  uint64_t accept_retries = 0;  // times that no file descriptor was left
};

// Connections that cannot be taken: told when it begins, then once a second, and when it is over.
struct AcceptTrouble {
  std::string reason;   // of the system; empty: connections are taken again
  uint64_t failed = 0;  // attempts since the last time that it was told
  size_t connections = 0;
};

// One request, when its answer is complete or its client has gone (499).
struct AccessRecord {
  std::string_view id, client, method, path;
  int status = 0;
  std::chrono::steady_clock::duration time{};  // from the complete request to there
};

class HttpServer {
 public:
  // Answers one request, now or later.
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // Looks at a request's head. False: the handler refuses it whatever its body says, so the body is
  // not read (`request().body` is empty, and the connection ends with the answer).
  using WantsBody = std::function<bool(const HttpRequest&)>;

  HttpServer(IoLoop& loop, HttpOptions options, WantsBody wants_body, Handler handler);
  // Closes every connection. Exchanges that are still held by others do nothing from then on.
  ~HttpServer();

  void on_access(std::function<void(const AccessRecord&)> tell);
  void on_accept_trouble(std::function<void(const AcceptTrouble&)> tell);

  // Binds and accepts. Errors: kInvalid with the address and the system's reason.
  Status listen();
  // Where it listens: host and port as bound.
  std::string host() const;
  int port() const;

  // Connections without a request close now, the others after their answer. New connections are
  // still accepted (they get what the handler answers) unless `accept` is false.
  void drain(bool accept);
  HttpCounters counters() const;
  bool sending() const;  // some client has not taken all of its answer

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Raises the soft limit of open files to the hard one; returns it.
size_t raise_file_limit();

}  // namespace lk
