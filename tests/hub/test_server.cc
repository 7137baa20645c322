#include "tests/hub/test_server.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

namespace lk {
namespace {

bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::string read_head(int socket) {
  std::string text;
  char buffer[4096];
  while (text.find("\r\n\r\n") == text.npos && text.size() < 65536) {
    const ssize_t count = recv(socket, buffer, sizeof buffer, 0);
    if (count <= 0) return "";
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

ServedRequest parse_head(const std::string& text) {
  ServedRequest request;
  const size_t space = text.find(' ');
  request.method = text.substr(0, space);
  request.target = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
  size_t begin = text.find("\r\n") + 2;
  for (size_t end; (end = text.find("\r\n", begin)) != begin && end != text.npos; begin = end + 2) {
    const std::string line = text.substr(begin, end - begin);
    const size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    request.headers[name] = line.substr(colon + 2);
  }
  return request;
}

}  // namespace

TestServer::TestServer(Handler handler) : handler_(std::move(handler)) {
  setenv("no_proxy", "127.0.0.1", 1);
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("the test server cannot listen");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_loop(); });
}

TestServer::~TestServer() {
  ending_ = true;
  acceptor_.join();
  for (std::thread& thread : connections_) thread.join();
  close(listener_);
}

std::string TestServer::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

std::vector<ServedRequest> TestServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void TestServer::accept_loop() {
  while (!ending_) {
    pollfd entry = {listener_, POLLIN, 0};
    if (poll(&entry, 1, 20) <= 0) continue;
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) connections_.emplace_back([this, socket] { serve(socket); });
  }
}

void TestServer::serve(int socket) {
  const std::string head = read_head(socket);
  if (!head.empty()) {
    const ServedRequest request = parse_head(head);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    answer(socket, request);
  }
  close(socket);
}

void TestServer::answer(int socket, const ServedRequest& request) {
  const ServedReply reply = handler_(request);
  std::string head = fmt::format("HTTP/1.1 {} Status\r\nConnection: close\r\n", reply.status);
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  if (reply.chunked) {
    head += "Transfer-Encoding: chunked\r\n";
  } else {
    const long length =
        reply.content_length >= 0 ? reply.content_length : static_cast<long>(reply.body.size());
    head += fmt::format("Content-Length: {}\r\n", length);
  }
  if (!send_all(socket, head + "\r\n") || request.method == "HEAD") return;
  std::string_view body = std::string_view(reply.body).substr(0, reply.cut_at);
  const size_t step = reply.drip_ms > 0 ? reply.drip_bytes : 65536;
  for (size_t at = 0; at < body.size() && !ending_; at += step) {
    const std::string_view piece = body.substr(at, step);
    const bool sent = reply.chunked
                          ? send_all(socket, fmt::format("{:x}\r\n{}\r\n", piece.size(), piece))
                          : send_all(socket, piece);
    if (!sent) return;
    if (reply.drip_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(reply.drip_ms));
  }
  if (reply.chunked && reply.cut_at == std::string::npos) send_all(socket, "0\r\n\r\n");
  while (reply.hang && !ending_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace lk
