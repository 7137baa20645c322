#include "tests/serve/http_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace lk {
namespace {

struct Socket {
  int fd;
  explicit Socket(int fd) : fd(fd) {}
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
};

bool send_all(int fd, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& body, const Headers& headers) {
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", method, path);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  if (method != "GET")
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  return text + "\r\n" + body;
}

std::string header_of(const std::string& head, const std::string& name) {
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
    const size_t begin = at + 2, colon = head.find(':', begin);
    if (colon == std::string::npos) break;
    if (colon - begin == name.size() &&
        strncasecmp(head.c_str() + begin, name.c_str(), name.size()) == 0) {
      const size_t value = head.find_first_not_of(' ', colon + 1);
      return head.substr(value, head.find("\r\n", value) - value);
    }
  }
  return "";
}

int status_of(const std::string& head) {
  int status = 0;
  return std::sscanf(head.c_str(), "HTTP/1.%*d %d", &status) == 1 ? status : 0;
}

// Takes chunked transfer coding off a growing byte stream.
class Body {
 public:
  explicit Body(bool chunked) : chunked_(chunked) {}
  void push(std::string_view bytes, std::string& out) {
    if (!chunked_) {
      out += bytes;
      return;
    }
    raw_ += bytes;
    while (!end_) {
      const size_t line = raw_.find("\r\n");
      if (line == std::string::npos) return;
      const size_t size = std::strtoul(raw_.c_str(), nullptr, 16);
      if (raw_.size() < line + 2 + size + 2) return;
      out.append(raw_, line + 2, size);
      raw_.erase(0, line + 2 + size + 2);
      end_ = size == 0;
    }
  }
  bool whole() const { return !chunked_ || end_; }

 private:
  bool chunked_, end_ = false;
  std::string raw_;
};

}  // namespace

int connect_loopback(int port, double timeout_seconds) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(timeout_seconds);
  limit.tv_usec =
      static_cast<suseconds_t>((timeout_seconds - static_cast<double>(limit.tv_sec)) * 1e6);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

std::string send_raw(int port, const std::string& bytes, double seconds) {
  const Socket socket(connect_loopback(port, seconds));
  std::string out;
  if (socket.fd < 0) return out;
  send_all(socket.fd, bytes);
  char buffer[4096];
  for (ssize_t n; (n = recv(socket.fd, buffer, sizeof buffer, 0)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  return out;
}

OrderedJson HttpAnswer::json() const {
  OrderedJson parsed = OrderedJson::parse(body, nullptr, false);
  return parsed.is_discarded() ? OrderedJson() : parsed;
}

std::string HttpAnswer::header(const std::string& name) const { return header_of(head, name); }

std::string StreamAnswer::text(int index) const {
  std::string out;
  for (const StreamEvent& event : events) {
    const OrderedJson chunk = OrderedJson::parse(event.data, nullptr, false);
    if (!chunk.is_object() || !chunk.contains("choices")) continue;
    for (const OrderedJson& choice : chunk["choices"]) {
      if (choice.value("index", 0) != index) continue;
      if (choice.contains("text")) out += choice["text"].get<std::string>();
      if (choice.contains("delta") && choice["delta"].contains("content") &&
          choice["delta"]["content"].is_string()) {
        out += choice["delta"]["content"].get<std::string>();
      }
    }
  }
  return out;
}

std::string StreamAnswer::finish_reason(int index) const {
  std::string out;
  for (const StreamEvent& event : events) {
    const OrderedJson chunk = OrderedJson::parse(event.data, nullptr, false);
    if (!chunk.is_object() || !chunk.contains("choices")) continue;
    for (const OrderedJson& choice : chunk["choices"]) {
      if (choice.value("index", 0) == index && choice.contains("finish_reason") &&
          choice["finish_reason"].is_string()) {
        out = choice["finish_reason"].get<std::string>();
      }
    }
  }
  return out;
}

HttpAnswer HttpClient::get(const std::string& path, const Headers& headers) {
  return exchange("GET", path, "", headers);
}

HttpAnswer HttpClient::post(const std::string& path, const OrderedJson& body,
                            const Headers& headers) {
  return exchange("POST", path, body.dump(), headers);
}

HttpAnswer HttpClient::post_text(const std::string& path, const std::string& body,
                                 const Headers& headers) {
  return exchange("POST", path, body, headers);
}

HttpAnswer HttpClient::exchange(const std::string& method, const std::string& path,
                                const std::string& body, const Headers& headers) {
  HttpAnswer answer;
  const Socket socket(connect_loopback(port_, timeout_));
  if (socket.fd < 0) return answer;
  send_all(socket.fd, request_text(method, path, body, headers));
  std::string bytes;
  char buffer[1 << 14];
  for (ssize_t n; (n = recv(socket.fd, buffer, sizeof buffer, 0)) > 0;)
    bytes.append(buffer, static_cast<size_t>(n));
  const size_t end = bytes.find("\r\n\r\n");
  if (end == std::string::npos) return answer;
  answer.head = bytes.substr(0, end + 2);
  Body decoder(!header_of(answer.head, "transfer-encoding").empty());
  decoder.push(std::string_view(bytes).substr(end + 4), answer.body);
  const std::string length = header_of(answer.head, "content-length");
  const bool whole =
      decoder.whole() && (length.empty() || answer.body.size() == std::stoul(length));
  if (whole) answer.status = status_of(answer.head);
  return answer;
}

StreamAnswer HttpClient::stream(const std::string& path, const OrderedJson& body,
                                const std::function<bool(const StreamAnswer&)>& go_on, bool reset) {
  StreamAnswer answer;
  const Socket socket(connect_loopback(port_, timeout_));
  if (socket.fd < 0) return answer;
  send_all(socket.fd, request_text("POST", path, body.dump(), {}));
  std::string head, text;
  std::optional<Body> decoder;
  char buffer[1 << 14];
  for (ssize_t n; (n = recv(socket.fd, buffer, sizeof buffer, 0)) > 0;) {
    std::string_view bytes(buffer, static_cast<size_t>(n));
    std::string rest;
    if (!decoder) {
      head += bytes;
      const size_t end = head.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      rest = head.substr(end + 4);
      answer.head = head.substr(0, end + 2);
      answer.status = status_of(answer.head);
      decoder.emplace(!header_of(answer.head, "transfer-encoding").empty());
      bytes = rest;
    }
    const size_t before = answer.body.size();
    decoder->push(bytes, answer.body);
    text.append(answer.body, before);
    const auto now = std::chrono::steady_clock::now();
    for (size_t end; (end = text.find("\n\n")) != std::string::npos; text.erase(0, end + 2)) {
      const size_t data = text.find("data: ");
      if (data >= end) continue;
      const std::string payload = text.substr(data + 6, end - data - 6);
      if (payload == "[DONE]") {
        answer.done = true;
        continue;
      }
      answer.events.push_back({now, payload});
      if (go_on && !go_on(answer)) {
        if (reset) {
          const linger hard{1, 0};
          setsockopt(socket.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        return answer;
      }
    }
  }
  return answer;
}

}  // namespace lk
