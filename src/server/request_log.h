// A line of the log for each request (--log-requests). Used on the loop's thread.
#pragma once

#include <string_view>

#include "server/generation.h"
#include "server/http/http_server.h"
#include "server/log_writer.h"

namespace lk {

class RequestLog {
 public:
  explicit RequestLog(LogWriter& writer) : writer_(writer) {}

  void on_access(const AccessRecord& access);
  void on_generation(const GenerationRecord& record);
  // A request's body, which holds its prompt; cut where it is long.
  void on_prompt(std::string_view id, std::string_view body);

 private:
  LogWriter& writer_;
};

}  // namespace lk
