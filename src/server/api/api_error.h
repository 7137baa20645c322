// An error as OpenAI's API tells it. Plain values.
#pragma once

#include <string>

#include "base/result.h"

namespace lk {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param{};  // the field; empty: null
  std::string code{};   // "context_length_exceeded", "model_not_found", ...; empty: null
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

// The one place that maps ErrorKind to a status: kInvalid and kUnsupported 400, kNotFound 404,
// kResource 503, kInternal 500.
ApiError api_error(const Error& error);
// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace lk
