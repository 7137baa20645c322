// Fetches the content of one file into the cache: resumed, checked, then put in its place. May run
// in several threads, each with a client of its own and another blob.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/content_hash.h"
#include "hub/hub_api.h"

namespace lk {

struct BlobRequest {
  std::string url, file;         // `file`: its name in messages
  std::string path;              // where it goes; <path>.incomplete grows meanwhile
  std::optional<uint64_t> size;  // bytes expected
  HashKind hash_kind = HashKind::kSha256;
  std::string hash;  // expected; empty: not known
};

// The caller holds the blob's lock. `done` follows the bytes that are there. Errors: kResource (the
// network after all attempts, the disk, `stop`): what has come is kept for the next time, but for a
// full disk; kInvalid (wrong size or hash: what has come is deleted; a refusal of the server).
Status fetch_blob(HttpClient& client, const HubTarget& target, const BlobRequest& request,
                  const std::function<bool()>& stop, std::atomic<uint64_t>& done);

}  // namespace lk
