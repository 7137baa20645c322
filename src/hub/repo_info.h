// What the hub says of a repository at one revision. Stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lk {

struct RepoFile {
  std::string name;              // is_safe_file_name()
  std::optional<uint64_t> size;  // bytes
  std::string sha256;            // of a file in LFS; empty: not in LFS, or not told
  std::string git_sha1;          // of any other file; empty: not told
};

struct RepoInfo {
  std::string commit;  // is_commit_hash()
  std::vector<RepoFile> files;

  const RepoFile* find(std::string_view name) const;
};

// Reads the answer of GET /api/models/<id>/revision/<revision>?blobs=true. Errors: kInvalid, naming
// `repo` and the field (a wrong type, a file name that leads out of its folder, too many files).
Result<RepoInfo> parse_repo_info(std::string_view json, const std::string& repo);

}  // namespace lk
