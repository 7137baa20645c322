// Takes a request's target apart. Stateless.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace lk {

// %XX to bytes; with `plus`, + to a space. None if an escape is broken.
std::optional<std::string> percent_decode(std::string_view text, bool plus);

// "/path?a=b", "http://host/path?a=b" or "*" into request.path and request.query. False if it is
// none of these or holds broken escapes, control characters or NUL.
bool read_target(std::string_view target, HttpRequest& request);

}  // namespace lk
