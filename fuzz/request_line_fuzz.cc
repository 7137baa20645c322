// One line of `lorikeet run --input`: any bytes give a request or one sentence.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "cli/answer.h"
#include "cli/request_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  lk::ParsedLine line = lk::parse_line(text, "line 1", {});
  lk::RunAnswer answer;
  answer.id = line.id;
  if (line.request) {
    LK_CHECK(line.request->request.max_tokens >= 0);
    LK_CHECK(lk::check_sampling(line.request->request.sampling));
  } else {
    LK_CHECK(!line.request.error().message.empty());
    answer.error = line.request.error().message;
  }
  LK_CHECK(!lk::Json::parse(answer.json(), nullptr, /*allow_exceptions=*/false).is_discarded());
  return 0;
}
