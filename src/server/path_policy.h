// Which folders adapters may be loaded from over the API. Looks at the disk's names, never at
// files' contents; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "server/api/api_error.h"

namespace lk {

struct PathPolicy {
  std::vector<std::string> roots;  // --lora-dir, --lora-root, the hub's cache; any may be missing
  std::vector<std::string> hub_patterns;  // --lora-hub-allow, globs of hub ids
};

// What a caller's `lora_path` may mean.
struct AllowedPath {
  std::string folder{};  // a real folder below one of the roots; or
  std::string hub_id{};  // an id that a pattern allows
};

// Errors: 400 for what can be no path (empty, NUL, over 4096 bytes, a URL), 403 for everything
// outside the roots, in the same words whether it exists or not; 404 for a path inside a root that
// is not there.
ApiResult<AllowedPath> check_adapter_path(const PathPolicy& policy, const std::string& path);

// '*' any characters, '?' one; anything else itself.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace lk
