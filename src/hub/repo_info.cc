#include "hub/repo_info.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "hub/repo_id.h"

namespace lk {
namespace {

constexpr size_t kMaxFiles = 200000;

// A field that may be absent or null. Errors: another type than T.
template <typename T>
Result<const T*> optional_field(const Json& object, const char* name, const std::string& repo) {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return nullptr;
  const auto* value = at->get_ptr<const T*>();
  if (value == nullptr)
    return invalid("the hub's answer about {} has a field {} of type {}", repo, name,
                   at->type_name());
  return value;
}

Result<RepoFile> parse_file(const Json& entry, const std::string& repo) {
  if (!entry.is_object()) return invalid("the hub's answer about {} lists no files", repo);
  RepoFile file;
  LK_ASSIGN_OR_RETURN(const auto* name, optional_field<std::string>(entry, "rfilename", repo));
  if (name == nullptr || !is_safe_file_name(*name))
    return invalid("the hub's answer about {} lists a file '{}', which could lie elsewhere", repo,
                   name == nullptr ? "" : *name);
  file.name = *name;
  LK_ASSIGN_OR_RETURN(const auto* size,
                      optional_field<Json::number_unsigned_t>(entry, "size", repo));
  if (size != nullptr) file.size = *size;
  LK_ASSIGN_OR_RETURN(const auto* lfs, optional_field<Json::object_t>(entry, "lfs", repo));
  if (lfs == nullptr) {
    LK_ASSIGN_OR_RETURN(const auto* blob, optional_field<std::string>(entry, "blobId", repo));
    if (blob != nullptr) file.git_sha1 = *blob;
    return file;
  }
  LK_ASSIGN_OR_RETURN(const auto* sha256,
                      optional_field<std::string>(entry["lfs"], "sha256", repo));
  if (sha256 != nullptr) file.sha256 = *sha256;
  return file;
}

}  // namespace

const RepoFile* RepoInfo::find(std::string_view name) const {
  const auto at = std::find_if(files.begin(), files.end(),
                               [&](const RepoFile& file) { return file.name == name; });
  return at == files.end() ? nullptr : &*at;
}

Result<RepoInfo> parse_repo_info(std::string_view text, const std::string& repo) {
  LK_ASSIGN_OR_RETURN(const Json json, parse_json(text, "the hub's answer about " + repo));
  if (!json.is_object()) return invalid("the hub's answer about {} is no JSON object", repo);
  RepoInfo info;
  LK_ASSIGN_OR_RETURN(const auto* commit, optional_field<std::string>(json, "sha", repo));
  if (commit == nullptr || !is_commit_hash(*commit))
    return invalid("the hub's answer about {} has no commit hash", repo);
  info.commit = *commit;
  LK_ASSIGN_OR_RETURN(const auto* files, optional_field<Json::array_t>(json, "siblings", repo));
  if (files == nullptr) return invalid("the hub's answer about {} lists no files", repo);
  if (files->size() > kMaxFiles)
    return invalid("the hub's answer about {} lists {} files, more than {}", repo, files->size(),
                   kMaxFiles);
  for (const Json& entry : *files) {
    LK_ASSIGN_OR_RETURN(RepoFile file, parse_file(entry, repo));
    info.files.push_back(std::move(file));
  }
  return info;
}

}  // namespace lk
