// Questions to the hub about a repository, with retries, and its refusals in words. One object
// belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/http_client.h"
#include "hub/needed_files.h"
#include "hub/repo_info.h"
#include "hub/settings.h"

namespace lk {

// One repository at one revision, and how to get it.
struct HubTarget {
  std::string id, revision;
  RepoKind kind = RepoKind::kModel;
  HubSettings settings;
};

// Decides whether and when a request is sent again. Used by one thread.
class Backoff {
 public:
  Backoff(const HubSettings& settings, std::function<bool()> stop)
      : settings_(settings), stop_(std::move(stop)) {}

  // Sleeps before the next attempt. False if there is none: the answer is final, the attempts are
  // used up, or stop() said so.
  bool wait(const HttpReply& reply);
  // The transfer has got on: all attempts are left again.
  void progressed() { failed_ = 0; }
  // Give up sooner while the hub cannot be reached at all.
  void set_unreachable_attempts(int attempts) { unreachable_attempts_ = attempts; }

 private:
  HubSettings settings_;
  std::function<bool()> stop_;
  int failed_ = 0;
  int unreachable_attempts_ = 0;  // 0: as all others
};

// What the hub's HEAD says of a file.
struct FileHead {
  std::string etag;              // the blob's name in the cache
  std::optional<uint64_t> size;  // bytes
};

class HubApi {
 public:
  HubApi(const HubTarget& target, std::function<bool()> stop);

  Result<RepoInfo> repo_info();
  Result<FileHead> head(const std::string& commit, const std::string& file);

  HttpClient& client() { return client_; }
  std::string file_url(const std::string& commit, const std::string& file) const;

 private:
  HttpReply send(const HttpRequest& request, Backoff backoff);

  HubTarget target_;
  std::function<bool()> stop_;
  HttpClient client_;
};

// The sentence about a request that failed for good. `file`: what it was about; empty: the
// repository.
Error refusal(const HubTarget& target, const std::string& file, const HttpReply& reply);

// `W/"abc"` → `abc`; empty if what remains is no file name.
std::string normalize_etag(std::string_view etag);

}  // namespace lk
