// An error as OpenAI's API tells it. Plain values.
#pragma once

#include <string>
#include <utility>

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
using ApiStatus = ApiResult<void>;

// 400 about the field `param`; the message is one sentence that names it.
template <typename... Args>
tl::unexpected<ApiError> bad_field(std::string param, fmt::format_string<Args...> format,
                                   Args&&... args) {
  return tl::unexpected<ApiError>(ApiError{
      .message = fmt::format(format, std::forward<Args>(args)...), .param = std::move(param)});
}

// The one place that maps ErrorKind to a status: kInvalid and kUnsupported 400, kNotFound 404,
// kResource 503, kInternal 500.
ApiError api_error(const Error& error);
// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace lk

// As LK_RETURN_IF_ERROR and LK_ASSIGN_OR_RETURN, for functions that return ApiResult.
#define LK_API_RETURN_IF_ERROR(expr)                                        \
  do {                                                                      \
    if (auto lk_status_ = (expr); !lk_status_) {                            \
      return tl::unexpected<::lk::ApiError>(std::move(lk_status_).error()); \
    }                                                                       \
  } while (false)

#define LK_API_ASSIGN_OR_RETURN(lhs, expr) \
  LK_API_ASSIGN_OR_RETURN_(LK_CONCAT(lk_result_, __LINE__), lhs, expr)
#define LK_API_ASSIGN_OR_RETURN_(tmp, lhs, expr)                           \
  auto tmp = (expr);                                                       \
  if (!tmp) return tl::unexpected<::lk::ApiError>(std::move(tmp).error()); \
  lhs = std::move(*tmp)
