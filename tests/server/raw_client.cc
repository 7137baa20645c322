#include "tests/server/raw_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tests/sanitizer.h"

namespace lk {

using Clock = std::chrono::steady_clock;

RawClient::RawClient() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}

RawClient::RawClient(int port) : RawClient() { connect(port); }

void RawClient::connect(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

RawClient::~RawClient() { close(); }

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool RawClient::fill(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd wait{fd_, POLLIN, 0};
  if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return false;
  char piece[1 << 16];
  const ssize_t count = recv(fd_, piece, sizeof piece, 0);
  if (count <= 0) return false;
  buffer_.append(piece, static_cast<size_t>(count));
  return true;
}

std::string RawClient::read_until(std::string_view end, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit * test::kPatience;
  size_t at, from = 0;  // what was searched already is not searched again: answers have megabytes
  while ((at = buffer_.find(end, from)) == std::string::npos) {
    from = buffer_.size() - std::min(buffer_.size(), end.size() - 1);
    if (!fill(deadline)) return std::exchange(buffer_, {});
  }
  std::string out = buffer_.substr(0, at + end.size());
  buffer_.erase(0, at + end.size());
  return out;
}

RawClient::Answer RawClient::answer() {
  const auto deadline = Clock::now() + std::chrono::seconds(10) * test::kPatience;
  Answer answer;
  answer.head = read_until("\r\n\r\n");
  if (answer.head.size() < 12 || !answer.head.starts_with("HTTP/1.1 ")) return answer;
  answer.status = std::atoi(answer.head.c_str() + 9);
  const std::string length = answer.header("content-length");
  if (!length.empty()) {
    const size_t count = std::strtoull(length.c_str(), nullptr, 10);
    while (buffer_.size() < count && fill(deadline)) {
    }
    answer.body = buffer_.substr(0, count);
    buffer_.erase(0, count);
  } else if (answer.header("transfer-encoding") == "chunked") {
    while (true) {
      const size_t count = std::strtoull(read_until("\r\n").c_str(), nullptr, 16);
      while (buffer_.size() < count + 2 && fill(deadline)) {
      }
      answer.body += buffer_.substr(0, count);
      buffer_.erase(0, count + 2);
      if (count == 0) break;
    }
  } else if (answer.status >= 200) {
    while (fill(deadline)) {
    }
    answer.body = std::exchange(buffer_, {});
  }
  return answer;
}

std::string RawClient::Answer::header(std::string_view name) const {
  const size_t at = head.find("\r\n" + std::string(name) + ": ");
  if (at == std::string::npos) return {};
  const size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

bool RawClient::closed_within(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit * test::kPatience;
  while (fill(deadline)) buffer_.clear();
  return Clock::now() < deadline;
}

void RawClient::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void RawClient::reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

void RawClient::half_close() { shutdown(fd_, SHUT_WR); }

std::string get_request(std::string_view path, std::string_view more_headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: t\r\n{}\r\n", path, more_headers);
}

std::string post_request(std::string_view path, std::string_view body,
                         std::string_view more_headers) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n{}\r\n{}", path,
                     body.size(), more_headers, body);
}

}  // namespace lk
