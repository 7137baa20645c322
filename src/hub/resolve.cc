#include "hub/resolve.h"

#include <filesystem>

#include "hub/cache.h"
#include "hub/needed_files.h"
#include "hub/repo_id.h"

namespace lk {
namespace fs = std::filesystem;
namespace {

// Nothing but a path is written so.
bool is_path(const std::string& text) {
  return text.starts_with('/') || text.starts_with('.') || text.starts_with('~') ||
         text.ends_with('/');
}

// The snapshot's folder with `note` about how it was found.
struct Cached {
  std::string folder;   // empty: not usable
  std::string missing;  // why not: what is not there
  bool complete = false;
};

Cached look_up(const HubCache& cache, const std::string& revision, RepoKind kind) {
  const auto commit = cache.find_commit(revision);
  if (!commit) return {};
  const SnapshotState state = check_snapshot(cache, *commit, kind);
  return {state.missing.empty() ? cache.snapshot(*commit) : "", state.missing, state.complete};
}

Result<std::string> resolve_id(const std::string& id, const std::string& revision, RepoKind kind,
                               const ResolveOptions& options) {
  HubSettings settings;
  if (options.settings) {
    settings = *options.settings;
  } else {
    LK_ASSIGN_OR_RETURN(settings, hub_settings_from_environment());
  }
  const HubCache cache(settings.cache, id);
  const Cached cached = look_up(cache, revision, kind);
  if (!cached.folder.empty()) return cached.folder;
  return fail(ErrorKind::kNotFound, "there is no folder '{}', and the hub cache {} {}", id,
              settings.cache,
              cached.missing.empty()
                  ? fmt::format("does not have it at revision '{}'", revision)
                  : fmt::format("has it at revision '{}' without {}", revision, cached.missing));
}

Result<std::string> resolve(const std::string& text, const std::string& revision, RepoKind kind,
                            const ResolveOptions& options) {
  std::error_code error;
  if (text.find('\0') == text.npos && fs::is_directory(text, error)) {
    if (!revision.empty())
      return invalid("--revision {} is for hub ids, and '{}' is a folder", revision, text);
    return text;
  }
  if (is_path(text) || !is_repo_id(text)) {
    return fail(ErrorKind::kNotFound, "there is no {} folder '{}'{}", kind_name(kind), text,
                is_path(text) ? "" : ", and it is no hub id (\"name\" or \"org/name\")");
  }
  if (!revision.empty() && !is_revision(revision))
    return invalid("'{}' is no name of a revision", revision);
  return resolve_id(text, revision.empty() ? std::string(kDefaultRevision) : revision, kind,
                    options);
}

}  // namespace

Result<std::string> resolve_model(const std::string& id_or_folder, const std::string& revision,
                                  const ResolveOptions& options) {
  return resolve(id_or_folder, revision, RepoKind::kModel, options);
}

Result<std::string> resolve_adapter(const std::string& id_or_folder, const std::string& revision,
                                    const ResolveOptions& options) {
  return resolve(id_or_folder, revision, RepoKind::kAdapter, options);
}

}  // namespace lk
