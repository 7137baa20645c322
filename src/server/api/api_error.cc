#include "server/api/api_error.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lk {

ApiError api_error(const Error& error) {
  switch (error.kind) {
    case ErrorKind::kInvalid:
    case ErrorKind::kUnsupported:
      return {.status = 400, .message = error.message};
    case ErrorKind::kNotFound:
      return {.status = 404, .message = error.message, .type = "not_found_error"};
    case ErrorKind::kResource:
      return {.status = 503, .message = error.message, .type = "service_unavailable_error"};
    case ErrorKind::kInternal:
      break;
  }
  return {.status = 500, .message = error.message, .type = "internal_server_error"};
}

std::string error_body(const ApiError& error) {
  const auto text = [](const std::string& s) { return s.empty() ? OrderedJson() : OrderedJson(s); };
  const OrderedJson body = {{"error",
                             {{"message", error.message},
                              {"type", error.type},
                              {"param", text(error.param)},
                              {"code", text(error.code)}}}};
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace lk
