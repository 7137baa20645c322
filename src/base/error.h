// The type behind Result<T>, without {fmt}, which nvcc does not compile. Value types; no locking.
#pragma once

#include <string>
#include <tl/expected.hpp>

namespace lk {

// What the caller can do about an error; the server maps it to an HTTP status in one place.
enum class ErrorKind {
  kInvalid,      // the input (file, flag, request) is wrong: exit code 2, HTTP 400
  kNotFound,     // a named thing does not exist: exit code 2, HTTP 404
  kUnsupported,  // understood, but not implemented: exit code 2, HTTP 400
  kResource,     // memory, disk or another limit: exit code 2, HTTP 503
  kInternal,     // a fault of ours: exit code 1, HTTP 500
};

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;  // one sentence, without a trailing newline
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

}  // namespace lk
