#include "hub/hub_api.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "hub/repo_id.h"

namespace lk {
namespace {

bool is_transient(const HttpReply& reply) {
  return reply.status == 408 || reply.status == 429 || reply.status >= 500 || !reply.error.empty();
}

std::optional<uint64_t> parse_size(const std::string* text) {
  uint64_t value = 0;
  if (text == nullptr) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return value;
}

// A header's or body's text, made fit for a sentence.
std::string excerpt(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text.size() > 200 ? text.substr(0, 200) + "…" : text;
}

}  // namespace

bool Backoff::wait(const HttpReply& reply) {
  if (reply.cancelled || !is_transient(reply)) return false;
  ++failed_;
  const int attempts = reply.unreachable && unreachable_attempts_ > 0
                           ? std::min(unreachable_attempts_, settings_.attempts)
                           : settings_.attempts;
  if (failed_ >= attempts) return false;
  double pause = std::min(settings_.backoff_s * static_cast<double>(1 << std::min(failed_ - 1, 10)),
                          settings_.max_backoff_s);
  if (reply.retry_after_s >= 0) {
    if (static_cast<double>(reply.retry_after_s) > settings_.max_retry_after_s) return false;
    pause = std::max(pause, static_cast<double>(reply.retry_after_s));
  }
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(pause);
  while (Clock::now() < end) {
    if (stop_ && stop_()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

HubApi::HubApi(const HubTarget& target, std::function<bool()> stop)
    : target_(target), stop_(stop), client_(target.settings, stop) {}

std::string HubApi::file_url(const std::string& commit, const std::string& file) const {
  return fmt::format("{}/{}/resolve/{}/{}", target_.settings.endpoint, target_.id, commit,
                     url_encode(file, /*keep_slash=*/true));
}

HttpReply HubApi::send(const HttpRequest& request, Backoff backoff) {
  HttpReply reply = client_.send(request);
  while (backoff.wait(reply)) reply = client_.send(request);
  return reply;
}

Result<RepoInfo> HubApi::repo_info() {
  HttpRequest request;
  request.url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", target_.settings.endpoint,
                            target_.id, url_encode(target_.revision, /*keep_slash=*/false));
  Backoff backoff(target_.settings, stop_);
  backoff.set_unreachable_attempts(2);  // a machine without a network hears of it soon
  const HttpReply reply = send(request, backoff);
  if (reply.status != 200 || !reply.error.empty())
    return tl::unexpected<Error>(refusal(target_, "", reply));
  return parse_repo_info(reply.body, target_.id);
}

Result<FileHead> HubApi::head(const std::string& commit, const std::string& file) {
  HttpRequest request;
  request.url = file_url(commit, file);
  request.head = true;
  const HttpReply reply = send(request, Backoff(target_.settings, stop_));
  if (reply.status < 200 || reply.status >= 400 || !reply.error.empty())
    return tl::unexpected<Error>(refusal(target_, file, reply));
  const std::string* answered = reply.header("x-repo-commit");
  if (answered != nullptr && *answered != commit)
    return invalid("{} was asked for commit {} of {} and answered with commit {}",
                   target_.settings.endpoint, commit, target_.id, excerpt(*answered));
  const std::string* etag = reply.header("x-linked-etag");
  if (etag == nullptr) etag = reply.header("etag");
  FileHead head;
  if (etag != nullptr) head.etag = normalize_etag(*etag);
  if (head.etag.empty())
    return invalid("{} names no ETag for {} of {} by which it could be kept",
                   target_.settings.endpoint, file, target_.id);
  head.size = parse_size(reply.header("x-linked-size"));
  if (!head.size && reply.status < 300) head.size = parse_size(reply.header("content-length"));
  return head;
}

Error refusal(const HubTarget& target, const std::string& file, const HttpReply& reply) {
  const std::string& endpoint = target.settings.endpoint;
  const std::string thing = file.empty()
                                ? fmt::format("the {} '{}'", kind_name(target.kind), target.id)
                                : fmt::format("{} of '{}'", file, target.id);
  if (reply.cancelled) return {ErrorKind::kResource, "the download was interrupted"};
  const std::string* code_header = reply.header("x-error-code");
  const std::string code = code_header == nullptr ? "" : *code_header;
  const bool token = !target.settings.token.empty();
  if (reply.status == 403 || code == "GatedRepo") {
    return {ErrorKind::kInvalid,
            fmt::format("{} refuses {} ({}): if it is gated, accept its conditions at {}/{} and {}",
                        endpoint, thing, reply.status, endpoint, target.id,
                        token ? "check that the token in HF_TOKEN may read it"
                              : "set HF_TOKEN to a token that may read it")};
  }
  if (reply.status == 401) {
    return {ErrorKind::kNotFound,
            fmt::format("{} does not show {} (401): it does not exist, or it is private or gated "
                        "and {}",
                        endpoint, thing,
                        token ? "the token in HF_TOKEN may not read it" : "HF_TOKEN is not set")};
  }
  if (reply.status == 404) {
    if (code == "RevisionNotFound")
      return {ErrorKind::kNotFound,
              fmt::format("{} has no revision '{}' of {}", endpoint, target.revision, thing)};
    return {ErrorKind::kNotFound, fmt::format("{} has not got {} at revision '{}' (404)", endpoint,
                                              thing, target.revision)};
  }
  if (!reply.error.empty()) {
    return {ErrorKind::kResource,
            fmt::format("{} could not be had from {}: {}", thing, endpoint, excerpt(reply.error))};
  }
  const std::string* message = reply.header("x-error-message");
  std::string text = fmt::format("{} answers {} for {}", endpoint, reply.status, thing);
  if (message != nullptr) text += ": " + excerpt(*message);
  if (reply.status == 429) text += "; try again later (HF_TOKEN raises the limit)";
  return {is_transient(reply) ? ErrorKind::kResource : ErrorKind::kInvalid, text};
}

std::string normalize_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  while (etag.starts_with('"')) etag.remove_prefix(1);
  while (etag.ends_with('"')) etag.remove_suffix(1);
  constexpr std::string_view kPlain =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-";
  if (etag.size() > 200 || etag.starts_with('.') || etag.find_first_not_of(kPlain) != etag.npos)
    return "";
  return std::string(etag);
}

}  // namespace lk
