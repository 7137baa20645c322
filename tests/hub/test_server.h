// A small HTTP/1.1 server on the loopback for the hub's tests: a thread for each connection, one
// request a connection.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lk {

struct ServedRequest {
  std::string method, target;
  std::map<std::string, std::string> headers;  // names in lower case
};

struct ServedReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  size_t cut_at = std::string::npos;  // close the connection after this many bytes of the body
  int drip_ms = 0;                    // pause after every drip_bytes
  size_t drip_bytes = 1000;
  bool chunked = false;      // instead of Content-Length
  bool hang = false;         // after the (cut) body: stay silent until the server ends
  long content_length = -1;  // a lie; -1: the truth
};

class TestServer {
 public:
  using Handler = std::function<ServedReply(const ServedRequest&)>;
  explicit TestServer(Handler handler);
  ~TestServer();

  int port() const { return port_; }
  std::string url() const;
  std::vector<ServedRequest> requests() const;

 private:
  void accept_loop();
  void serve(int socket);
  void answer(int socket, const ServedRequest& request);

  Handler handler_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> ending_{false};
  mutable std::mutex mutex_;
  std::vector<ServedRequest> requests_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

}  // namespace lk
