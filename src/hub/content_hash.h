// The two hashes by which the hub names file contents. Stateless.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace lk {

enum class HashKind {
  kSha256,   // files in LFS
  kGitBlob,  // all others: SHA-1 over "blob <size>\0" and the content, as git does
};

// Hash of a file's bytes in lower-case hexadecimal digits. `stop` is polled at every MiB and may be
// null. Errors: kResource (the file cannot be read, or stop said so).
Result<std::string> hash_file(const std::string& path, HashKind kind,
                              const std::function<bool()>& stop);

}  // namespace lk
