// A plain socket on the loopback, for tests that need to misbehave. Its time limits are
// test::kPatience times as long.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace lk {

class RawClient {
 public:
  RawClient();  // not connected
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void connect(int port);
  bool connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);  // all of them; false if the other side is gone
  // One answer: its head, and its body by content-length or chunks (joined). Empty if none came.
  struct Answer {
    int status = 0;
    std::string head, body;
    std::string header(std::string_view name) const;  // lower case; empty if absent
  };
  Answer answer();
  // Bytes until `end` is in them, the other side closes, or time is over.
  std::string read_until(std::string_view end,
                         std::chrono::milliseconds limit = std::chrono::seconds(10));
  // True if the other side closed (or reset) within the time; what comes before is dropped.
  bool closed_within(std::chrono::milliseconds limit);
  void close();  // FIN
  void reset();  // RST
  void half_close();

 private:
  bool fill(std::chrono::steady_clock::time_point deadline);

  int fd_ = -1;
  std::string buffer_;
};

std::string get_request(std::string_view path, std::string_view more_headers = "");
std::string post_request(std::string_view path, std::string_view body,
                         std::string_view more_headers = "");

}  // namespace lk
