// Reads HTTP/1 requests from a stream of bytes, one after the other. Used by one thread. Memory is
// bounded by the limits, whatever the bytes are.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace lk {

struct HttpLimits {
  size_t header = 16 << 10;
  size_t body = 64 << 20;
};

class RequestParser {
 public:
  enum class State {
    kIdle,    // no byte of the request so far
    kHead,    // some of its head
    kBody,    // its head is complete (`request`), its body is not
    kDone,    // complete; further bytes are kept for the next one
    kFailed,  // no request: `error_status` and `error`; further bytes are dropped
  };

  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();

  void feed(std::string_view bytes);
  State state() const;
  // Valid from kBody on.
  HttpRequest& request();
  bool keep_alive() const;  // what the client wants
  bool http10() const;
  bool expects_continue() const;
  // Bytes that were fed and belong to the next request, or are not understood yet.
  size_t buffered() const;
  // With kFailed: 400, 413, 417, 431, 501 or 505, and why.
  int error_status() const;
  const std::string& error() const;

  // From kDone: goes on to the next request, with the bytes that are there.
  void next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
