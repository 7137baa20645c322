#include "server/http/response_head.h"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <iterator>

namespace lk {
namespace {

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) {
    if (c != '\r' && c != '\n' && c != '\0') out += c;
  }
  out += "\r\n";
}

// RFC 9110, 5.6.7; made anew once a second.
const std::string& http_date() {
  thread_local std::time_t last = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != last) {
    last = now;
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::array<char, 40> buffer{};
    text.assign(buffer.data(),
                std::strftime(buffer.data(), buffer.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts));
  }
  return text;
}

}  // namespace

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

void append_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", head.status,
                 status_text(head.status));
  append_header(out, "date", http_date());
  append_header(out, "server", "lorikeet");
  if (!head.content_type.empty()) append_header(out, "content-type", head.content_type);
  if (head.content_length) {
    fmt::format_to(std::back_inserter(out), "content-length: {}\r\n", *head.content_length);
  }
  if (head.chunked) append_header(out, "transfer-encoding", "chunked");
  append_header(out, "connection", head.keep_alive ? "keep-alive" : "close");
  if (!head.request_id.empty()) append_header(out, "x-request-id", head.request_id);
  if (head.cross_origin) append_header(out, "access-control-allow-origin", "*");
  for (const auto& [name, value] : headers) append_header(out, name, value);
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view data) {
  if (data.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out.append(data).append("\r\n");
}

}  // namespace lk
