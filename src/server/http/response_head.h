// The bytes around an answer: status line, headers, chunks. Stateless.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace lk {

struct ResponseHead {
  int status = 200;
  std::string_view content_type;
  std::optional<size_t> content_length;  // none: chunked, or until the connection closes
  bool chunked = false;
  bool keep_alive = true;
  std::string_view request_id;  // empty: none
  bool cross_origin = false;    // a browser asks: any origin may read the answer
};

std::string_view status_text(int status);
// From "HTTP/1.1 200 OK" to the empty line. Line breaks in values are dropped.
void append_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers);
void append_chunk(std::string& out, std::string_view data);  // nothing for no data

}  // namespace lk
