// HTTP and HTTPS GET and HEAD over libcurl, redirects followed by hand so that the token goes to
// the hub alone. Used by one thread; keeps its connection between requests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/settings.h"

namespace lk {

struct HttpReply {
  int status = 0;  // of the last hop; 0: none came
  // Of the last hop, names in lower case.
  std::map<std::string, std::string> headers;
  std::string body;            // what no sink took, 32 MiB at most
  std::string error;           // the transfer broke off: why. Empty: it came to its end
  bool cancelled = false;      // by the stop function
  bool unreachable = false;    // no connection was made
  int64_t retry_after_s = -1;  // -1: not given

  const std::string* header(const std::string& name) const {
    const auto at = headers.find(name);
    return at == headers.end() ? nullptr : &at->second;
  }
};

struct HttpRequest {
  std::string url;
  bool head = false;       // HEAD; follows redirects until an answer names the file's ETag
  uint64_t from_byte = 0;  // above 0: asks for the rest from here
  // Sees status and headers of a 2xx answer before its body. False breaks the transfer off.
  std::function<bool(const HttpReply&)> begin;
  // Takes the body of a 2xx answer. False breaks the transfer off.
  std::function<bool(std::string_view)> sink;
};

class HttpClient {
 public:
  // `stop` is polled during transfers, once a second or more.
  HttpClient(const HubSettings& settings, std::function<bool()> stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpReply send(const HttpRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Percent-encodes a part of a URL's path; '/' stays if `keep_slash`.
std::string url_encode(std::string_view text, bool keep_slash);

}  // namespace lk
