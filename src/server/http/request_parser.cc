#include "server/http/request_parser.h"

#include <fmt/core.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <optional>

#include "server/http/url.h"

namespace lk {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::string_view;

std::string lower(string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

class BeastParser final : public http::basic_parser<true> {
 public:
  HttpRequest request;
  int version = 11;
  bool head_done = false;
  int hosts = 0;    // Host headers
  int refused = 0;  // status; set beside an error code
  std::string why;

 private:
  void refuse(int status, std::string text, error_code& error) {
    refused = status;
    why = std::move(text);
    error = http::error::bad_value;
  }

  void on_request_impl(http::verb, string_view method, string_view target, int http_version,
                       error_code& error) override {
    version = http_version;
    if (version != 10 && version != 11) {
      return refuse(505, "only HTTP/1.0 and HTTP/1.1 are spoken here", error);
    }
    request.method = std::string(method);
    if (!read_target(std::string_view(target.data(), target.size()), request)) {
      refuse(400, "the request's target is not a valid path", error);
    }
  }

  void on_field_impl(http::field, string_view name, string_view value, error_code& error) override {
    if (head_done) return;  // trailers say nothing that matters here
    const std::string key = lower(name);
    if (key == "transfer-encoding" && lower(value) != "chunked") {
      return refuse(501, "the only transfer encoding understood here is chunked", error);
    }
    if (key == "host") ++hosts;
    std::string& field = request.headers[key];
    if (!field.empty()) field += ", ";
    field.append(value.data(), value.size());
  }

  void on_header_impl(error_code& error) override {
    head_done = true;
    // RFC 9112, 3.2, and RFC 9110, 10.1.1.
    if (version == 11 && hosts == 0) {
      return refuse(400, "an HTTP/1.1 request must have a Host header", error);
    }
    if (hosts > 1 || request.header("host").find_first_of(" \t,/?#@\\") != std::string::npos) {
      return refuse(400, "the Host header must be one host, and a port if need be", error);
    }
    const std::string expected = request.header("expect");
    if (version == 11 && !expected.empty() && lower(expected) != "100-continue") {
      refuse(417, "the only expectation understood here is 100-continue", error);
    }
  }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(string_view body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_finish_impl(error_code&) override {}
  void on_response_impl(int, string_view, int, error_code&) override {}
};

}  // namespace

struct RequestParser::Impl {
  HttpLimits limits;
  std::optional<BeastParser> parser;
  std::string input;  // not understood yet
  State state = State::kIdle;
  int status = 400;
  std::string error;

  void start() {
    parser.emplace();
    parser->eager(true);
    parser->header_limit(static_cast<std::uint32_t>(limits.header));
    parser->body_limit(limits.body);
    state = State::kIdle;
  }

  void fail(int code, std::string text) {
    state = State::kFailed;
    status = code;
    error = std::move(text);
    std::string().swap(input);
  }

  void fail(const error_code& code) {
    if (parser->refused != 0) return fail(parser->refused, parser->why);
    if (code == http::error::body_limit) {
      return fail(413, fmt::format("the body is longer than {} bytes", limits.body));
    }
    if (code == http::error::header_limit) return long_head();
    fail(400, "this is not a valid HTTP request: " + code.message());
  }
  void long_head() {
    fail(431, fmt::format("the request's head is longer than {} bytes", limits.header));
  }

  void parse() {
    if (state == State::kIdle) {
      // Empty lines before a request are ignored (RFC 9112, 2.2).
      const size_t first = input.find_first_not_of("\r\n");
      input.erase(0, std::min(first, input.size()));
      if (input.empty()) return;
      state = State::kHead;
    }
    size_t used = 0;
    error_code code;
    while (used < input.size() && !parser->is_done()) {
      const size_t taken =
          parser->put(boost::asio::const_buffer(input.data() + used, input.size() - used), code);
      used += taken;
      if (code == http::error::need_more) break;
      if (code) return fail(code);
      if (taken == 0) break;
    }
    input.erase(0, used);
    if (parser->is_done()) {
      state = State::kDone;
    } else {
      // What waits now is one line or head that does not end.
      if (input.size() > limits.header) return long_head();
      if (parser->head_done) state = State::kBody;
    }
  }
};

RequestParser::RequestParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  impl_->start();
}
RequestParser::~RequestParser() = default;

void RequestParser::feed(std::string_view bytes) {
  if (impl_->state == State::kFailed) return;
  impl_->input.append(bytes);
  if (impl_->state != State::kDone) impl_->parse();
}

RequestParser::State RequestParser::state() const { return impl_->state; }
HttpRequest& RequestParser::request() { return impl_->parser->request; }
bool RequestParser::keep_alive() const { return impl_->parser->keep_alive(); }
bool RequestParser::http10() const { return impl_->parser->version == 10; }
bool RequestParser::expects_continue() const {
  return !http10() && lower(impl_->parser->request.header("expect")) == "100-continue";
}
size_t RequestParser::buffered() const { return impl_->input.size(); }
int RequestParser::error_status() const { return impl_->status; }
const std::string& RequestParser::error() const { return impl_->error; }

void RequestParser::next() {
  impl_->start();
  if (!impl_->input.empty()) {
    impl_->parse();
  } else if (impl_->input.capacity() > 4096) {
    std::string().swap(impl_->input);  // thousands of connections wait here
  }
}

}  // namespace lk
