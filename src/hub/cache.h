// One repository in the Hugging Face cache, in huggingface_hub's layout, so that its tools and this
// program share what each other fetched:
//   <cache>/models--org--name/refs/<branch>              the commit hash, no newline
//                             /snapshots/<commit>/<file>  a relative symlink to
//                             /blobs/<etag>               (<etag>.incomplete while it comes)
//                             /.no_exist/<commit>/<file>  empty: the commit has no such file
//   <cache>/.locks/models--org--name/<etag>.lock          held by flock while a blob is fetched
// Holds paths only; every function looks at the disk. May be used by several threads and processes.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace lk {

class HubCache {
 public:
  // `id` satisfies is_repo_id().
  HubCache(std::string root, std::string_view id);

  std::string snapshot(const std::string& commit) const;
  std::string blob(const std::string& etag) const;

  // The commit that `revision` stands for here: a full hash whose snapshot is here, a branch or tag
  // in refs/, or the beginning (7 digits or more) of one snapshot's hash.
  std::optional<std::string> find_commit(const std::string& revision) const;
  bool has_file(const std::string& commit, const std::string& file) const;
  bool known_absent(const std::string& commit, const std::string& file) const;

  // Makes the folders that a download writes into. Errors: kResource.
  Status prepare() const;
  // Makes snapshots/<commit>/<file> point at the blob. Errors: kResource.
  Status link(const std::string& commit, const std::string& file, const std::string& etag) const;
  // Notes that `revision` stands for `commit`. Errors: kResource.
  Status write_ref(const std::string& revision, const std::string& commit) const;
  // Best effort: the cache may be read-only.
  void mark_absent(const std::string& commit, const std::string& file) const;

  std::string lock_path(const std::string& etag) const;

 private:
  std::string root_;
  std::string name_;    // models--org--name
  std::string folder_;  // root_/name_
};

}  // namespace lk
