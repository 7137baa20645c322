#include "hub/resolve.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>

#include "hub/cache.h"
#include "hub/download.h"
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

// "id@revision", if no revision is given apart.
std::pair<std::string, std::string> split_revision(const std::string& text,
                                                   const std::string& revision) {
  const size_t at = text.find('@');
  if (at == text.npos || at + 1 == text.size() || !revision.empty() ||
      !is_repo_id(text.substr(0, at)))
    return {text, revision};
  return {text.substr(0, at), text.substr(at + 1)};
}

// What the cache has.
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

tl::unexpected<Error> not_found(const HubTarget& target, const ResolveOptions& options,
                                const std::string& why) {
  if (options.hub_only) return fail(ErrorKind::kNotFound, "{}", why);
  return fail(ErrorKind::kNotFound, "there is no folder '{}', and {}", target.id, why);
}

std::string not_in_cache(const HubTarget& target, const Cached& cached) {
  const std::string has =
      cached.missing.empty()
          ? fmt::format("does not have it at revision '{}'", target.revision)
          : fmt::format("has it at revision '{}' without {}", target.revision, cached.missing);
  return fmt::format("the hub cache {} {}: {}", target.settings.cache, has,
                     target.settings.offline ? "HF_HUB_OFFLINE forbids a download"
                                             : "a download was not asked for");
}

Result<std::string> resolve_id(HubTarget target, const ResolveOptions& options) {
  if (options.settings) {
    target.settings = *options.settings;
  } else {
    LK_ASSIGN_OR_RETURN(target.settings, hub_settings_from_environment());
  }
  const HubCache cache(target.settings.cache, target.id);
  const Cached cached = look_up(cache, target.revision, target.kind);
  const bool usable = !cached.folder.empty();
  if (usable && cached.complete && !options.refresh) return cached.folder;
  if (target.settings.offline || options.cache_only)
    return usable ? Result<std::string>(cached.folder)
                  : not_found(target, options, not_in_cache(target, cached));

  if (usable && !options.refresh) target.settings.attempts = 1;  // it can do without
  const auto commit = download_snapshot(target, cache, {options.progress, options.cancelled});
  if (commit) return cache.snapshot(*commit);
  const Error& error = commit.error();
  const bool stopped = options.cancelled && options.cancelled();
  if (usable && !stopped && (!options.refresh || error.kind == ErrorKind::kResource)) {
    if (options.warn)
      options.warn(fmt::format("{}; going on with what is in {}", error.message, cached.folder));
    return cached.folder;
  }
  if (error.kind == ErrorKind::kNotFound) return not_found(target, options, error.message);
  return tl::unexpected<Error>(error);
}

Result<std::string> resolve(const std::string& given, const std::string& given_revision,
                            RepoKind kind, const ResolveOptions& options) {
  std::error_code error;
  if (!options.hub_only && given.find('\0') == given.npos && fs::is_directory(given, error)) {
    if (!given_revision.empty())
      return invalid("--revision {} is for hub ids, and '{}' is a folder", given_revision, given);
    return given;
  }
  const auto [text, revision] = split_revision(given, given_revision);
  if (options.hub_only && !is_repo_id(text))
    return invalid("'{}' is no hub id: expected \"name\" or \"org/name\"", text);
  if (is_path(text) || !is_repo_id(text)) {
    return fail(ErrorKind::kNotFound, "there is no {} folder '{}'{}", kind_name(kind), text,
                is_path(text) ? "" : ", and it is no hub id (\"name\" or \"org/name\")");
  }
  if (!revision.empty() && !is_revision(revision))
    return invalid("'{}' is no name of a revision", revision);
  HubTarget target;
  target.id = text;
  target.revision = revision.empty() ? std::string(kDefaultRevision) : revision;
  target.kind = kind;
  return resolve_id(std::move(target), options);
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

Result<std::string> resolve_tokenizer(const std::string& id_or_folder, const std::string& revision,
                                      const ResolveOptions& options) {
  return resolve(id_or_folder, revision, RepoKind::kTokenizer, options);
}

}  // namespace lk
