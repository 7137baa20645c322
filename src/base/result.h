// Result<T>: a value or one clear sentence about why there is none. Value types; no locking.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "base/error.h"

namespace lk {

template <typename... Args>
tl::unexpected<Error> fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...)});
}

template <typename... Args>
tl::unexpected<Error> invalid(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorKind::kInvalid, format, std::forward<Args>(args)...);
}

template <typename... Args>
tl::unexpected<Error> unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorKind::kUnsupported, format, std::forward<Args>(args)...);
}

}  // namespace lk

#define LK_CONCAT_(a, b) a##b
#define LK_CONCAT(a, b) LK_CONCAT_(a, b)

// Returns the error of `expr` from the enclosing function, if it has one.
#define LK_RETURN_IF_ERROR(expr)                                         \
  do {                                                                   \
    if (auto lk_status_ = (expr); !lk_status_) {                         \
      return tl::unexpected<::lk::Error>(std::move(lk_status_).error()); \
    }                                                                    \
  } while (false)

// `LK_ASSIGN_OR_RETURN(auto x, f());` unwraps f()'s value or returns its error.
#define LK_ASSIGN_OR_RETURN(lhs, expr) \
  LK_ASSIGN_OR_RETURN_(LK_CONCAT(lk_result_, __LINE__), lhs, expr)
#define LK_ASSIGN_OR_RETURN_(tmp, lhs, expr)                            \
  auto tmp = (expr);                                                    \
  if (!tmp) return tl::unexpected<::lk::Error>(std::move(tmp).error()); \
  lhs = std::move(*tmp)
