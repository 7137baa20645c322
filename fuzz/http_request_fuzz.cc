// Bytes on a connection: whatever they are, requests come out whole or with a status and a
// sentence, memory stays bounded, and the pieces in which they arrive make no difference.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http/request_parser.h"

namespace {

using State = lk::RequestParser::State;

constexpr lk::HttpLimits kLimits{.header = 1 << 10, .body = 1 << 10};

struct Outcome {
  std::vector<std::string> requests;  // everything that was understood of each
  int failed = 0;                     // status
  bool in_head = false;               // at the end
};

std::string describe(lk::RequestParser& parser) {
  const lk::HttpRequest& request = parser.request();
  LK_CHECK(!request.method.empty());
  LK_CHECK(request.path.starts_with('/') || request.path == "*");
  LK_CHECK(request.body.size() <= kLimits.body);
  std::string out = request.method + '\n' + request.path + '\n' + request.body + '\n';
  for (const auto& [key, value] : request.query) out += key + '=' + value + '\n';
  for (const auto& [name, value] : request.headers) {
    for (const char c : name) LK_CHECK(c < 'A' || c > 'Z');
    out += name + ':' + value + '\n';
  }
  out += parser.keep_alive() ? 'k' : '-';
  out += parser.http10() ? '0' : '1';
  out += parser.expects_continue() ? 'c' : '-';
  return out;
}

// `seed` says in which pieces the bytes arrive; 0: in one.
Outcome read_all(std::string_view bytes, uint32_t seed) {
  lk::RequestParser parser(kLimits);
  Outcome outcome;
  while (!bytes.empty()) {
    size_t piece = bytes.size();
    if (seed != 0) {
      seed = seed * 1664525 + 1013904223;
      piece = std::min<size_t>(piece, 1 + (seed >> 24) % 40);
    }
    parser.feed(bytes.substr(0, piece));
    bytes.remove_prefix(piece);
    while (parser.state() == State::kDone) {
      outcome.requests.push_back(describe(parser));
      parser.next();
    }
    if (seed != 0) LK_CHECK(parser.buffered() <= kLimits.header + piece);
    if (parser.state() == State::kFailed) {
      outcome.failed = parser.error_status();
      LK_CHECK(outcome.failed >= 400 && !parser.error().empty());
      LK_CHECK(parser.buffered() == 0);
      break;
    }
  }
  outcome.in_head = parser.state() == State::kHead;
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const uint32_t seed = data[0] | data[1] << 8 | data[2] << 16 | 1u << 24;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  const Outcome whole = read_all(bytes, 0), pieces = read_all(bytes, seed);
  // A limit may be felt a little earlier or later.
  const auto limit = [](int status) { return status == 413 || status == 431; };
  if (limit(whole.failed) || limit(pieces.failed)) return 0;
  // What is wrong with a head may be seen at once or when it ends.
  LK_CHECK(whole.failed == pieces.failed || whole.in_head || pieces.in_head);
  LK_CHECK(whole.requests == pieces.requests);
  return 0;
}
