// Names on the hub: repositories, revisions, files, commits. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace lk {

inline constexpr std::string_view kDefaultRevision = "main";

// "name" or "org/name" by the hub's rules: letters, digits, '-', '_', '.', 96 at most a part,
// neither end a '-' or '.', no "--", no "..", no ".git" at the end.
bool is_repo_id(std::string_view text);
// A branch, tag or (part of a) commit hash: what git allows in a name, and nothing that leads out
// of a folder.
bool is_revision(std::string_view text);
// 40 lower-case hexadecimal digits.
bool is_commit_hash(std::string_view text);
// A relative path, parts between single '/', none of them "." or "..", no control characters and
// no backslash; parts of 255 bytes at most, 1024 in all.
bool is_safe_file_name(std::string_view text);

// "models--org--name".
std::string repo_folder_name(std::string_view id);

}  // namespace lk
