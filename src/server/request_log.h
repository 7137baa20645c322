// A line on stderr for each request, as key=value. Written by a thread of its own, so that a slow
// terminal holds up nobody; lines are dropped, and counted, where too many wait.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/generation.h"
#include "server/http/http_server.h"

namespace lk {

class RequestLog {
 public:
  RequestLog();
  ~RequestLog();  // writes what waits

  void on_access(const AccessRecord& access);
  void on_generation(const GenerationRecord& record);
  // A request's body, which holds its prompt; cut where it is long.
  void on_prompt(std::string_view id, std::string_view body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// `key=value` with a space before it; the value is quoted, and escaped like JSON, unless it is
// plain.
void append_field(std::string& line, std::string_view key, std::string_view value);

}  // namespace lk
