#include "hub/http_client.h"

#include <curl/curl.h>
#include <fmt/core.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"

namespace lk {
namespace {

constexpr size_t kMaxBody = 32u << 20;
constexpr size_t kMaxHeaders = 256;
constexpr int kMaxRedirects = 10;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos)
    text.remove_suffix(1);
  return text;
}

struct UrlDeleter {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Url = std::unique_ptr<CURLU, UrlDeleter>;

std::string url_part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  std::string out(text);
  curl_free(text);
  return out;
}

// "https://host:443"; empty if `text` is no URL.
std::string origin(const std::string& text) {
  const Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return "";
  return fmt::format("{}://{}:{}", lower(url_part(url.get(), CURLUPART_SCHEME)),
                     lower(url_part(url.get(), CURLUPART_HOST)),
                     url_part(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT));
}

// `location` as seen from `base`; empty if it is none.
std::string absolute_url(const std::string& base, const std::string& location) {
  const Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK) return "";
  if (curl_url_set(url.get(), CURLUPART_URL, location.c_str(), CURLU_URLENCODE) != CURLUE_OK)
    return "";
  return url_part(url.get(), CURLUPART_URL);
}

}  // namespace

struct HttpClient::Impl {
  HubSettings settings;
  std::string hub_origin;
  std::function<bool()> stop;
  CURL* curl = nullptr;
  char error[CURL_ERROR_SIZE] = "";

  // Of the transfer that runs.
  const HttpRequest* request = nullptr;
  HttpReply reply;
  bool begun = false;
  std::string broken;  // why a callback broke it off

  void on_header(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // a new answer, after a 100 or a proxy's
      reply.headers.clear();
      return;
    }
    const size_t colon = line.find(':');
    if (colon == line.npos || reply.headers.size() >= kMaxHeaders) return;
    reply.headers[lower(trim(line.substr(0, colon)))] = std::string(trim(line.substr(colon + 1)));
  }

  bool begin_body() {
    if (begun) return true;
    begun = true;
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    reply.status = static_cast<int>(status);
    return reply.status / 100 != 2 || !request->begin || request->begin(reply);
  }

  bool on_body(std::string_view bytes) {
    if (!begin_body()) return false;
    if (reply.status / 100 == 2 && request->sink) return request->sink(bytes);
    if (reply.body.size() + bytes.size() > kMaxBody) {
      broken = "the answer is larger than 32 MiB";
      return false;
    }
    reply.body += bytes;
    return true;
  }

  void perform(const std::string& url);
};

void HttpClient::Impl::perform(const std::string& url) {
  reply = HttpReply();
  begun = false;
  broken.clear();
  error[0] = '\0';
  curl_easy_reset(curl);
  const auto set = [this](CURLoption option, auto value) { curl_easy_setopt(curl, option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_NOBODY, request->head ? 1L : 0L);
  set(CURLOPT_USERAGENT, "lorikeet/0.1.0");
  set(CURLOPT_ERRORBUFFER, error);
  set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(settings.connect_timeout_s));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.read_timeout_s));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_BUFFERSIZE, 256L << 10);
  if (!settings.ca_file.empty()) set(CURLOPT_CAINFO, settings.ca_file.c_str());
  set(CURLOPT_WRITEDATA, this);
  set(
      CURLOPT_WRITEFUNCTION, +[](char* data, size_t, size_t size, void* self) -> size_t {
        return static_cast<Impl*>(self)->on_body({data, size}) ? size : 0;
      });
  set(CURLOPT_HEADERDATA, this);
  set(
      CURLOPT_HEADERFUNCTION, +[](char* data, size_t, size_t size, void* self) -> size_t {
        static_cast<Impl*>(self)->on_header({data, size});
        return size;
      });
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFODATA, this);
  set(
      CURLOPT_XFERINFOFUNCTION,
      +[](void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) -> int {
        auto* impl = static_cast<Impl*>(self);
        if (!impl->stop || !impl->stop()) return 0;
        impl->reply.cancelled = true;
        return 1;
      });

  // Sizes, ranges and hashes are those of the file, not of a compressed form.
  curl_slist* headers = curl_slist_append(nullptr, "Accept-Encoding: identity");
  if (!settings.token.empty() && origin(url) == hub_origin)
    headers = curl_slist_append(headers, ("Authorization: Bearer " + settings.token).c_str());
  if (request->from_byte > 0)
    headers =
        curl_slist_append(headers, fmt::format("Range: bytes={}-", request->from_byte).c_str());
  set(CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(headers);

  if (code == CURLE_OK && !begin_body()) broken = "broken off";  // an empty body
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  curl_off_t retry_after = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after);
  if (reply.headers.contains("retry-after"))
    reply.retry_after_s = std::max<int64_t>(0, retry_after);
  reply.unreachable = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT ||
                      code == CURLE_COULDNT_RESOLVE_PROXY;
  if (!broken.empty()) {
    reply.error = broken;
  } else if (code != CURLE_OK) {
    reply.error = error[0] != '\0' ? error : curl_easy_strerror(code);
  }
}

HttpClient::HttpClient(const HubSettings& settings, std::function<bool()> stop)
    : impl_(std::make_unique<Impl>()) {
  static std::once_flag once;
  std::call_once(once, [] { LK_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
  impl_->settings = settings;
  impl_->hub_origin = origin(settings.endpoint);
  impl_->stop = std::move(stop);
  impl_->curl = curl_easy_init();
  LK_CHECK(impl_->curl != nullptr);
}

HttpClient::~HttpClient() { curl_easy_cleanup(impl_->curl); }

HttpReply HttpClient::send(const HttpRequest& request) {
  Impl& impl = *impl_;
  impl.request = &request;
  std::string url = request.url;
  for (int hop = 0;; ++hop) {
    impl.perform(url);
    HttpReply& reply = impl.reply;
    const std::string* location = reply.header("location");
    if (!reply.error.empty() || !is_redirect(reply.status) || location == nullptr)
      return std::move(reply);
    const std::string next = absolute_url(url, *location);
    // The hub names the file in the answer that leads to where it is stored; the store's own ETag
    // is another.
    if (request.head && (reply.header("x-linked-etag") != nullptr ||
                         (reply.header("etag") != nullptr && origin(next) != origin(url))))
      return std::move(reply);
    if (next.empty() || hop == kMaxRedirects) {
      reply.error = next.empty() ? fmt::format("the redirect to '{}' leads nowhere", *location)
                                 : fmt::format("more than {} redirects", kMaxRedirects);
      return std::move(reply);
    }
    url = next;
  }
}

std::string url_encode(std::string_view text, bool keep_slash) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-_.~").find(c) != std::string_view::npos ||
                       (keep_slash && c == '/');
    if (plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace lk
