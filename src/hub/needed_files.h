// Which files of a repository this program reads, and whether a snapshot has them. Stateless.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "hub/cache.h"

namespace lk {

// kTokenizer: of a model's repository, the files that turn text into tokens.
enum class RepoKind { kModel, kAdapter, kTokenizer };

// "model", "adapter" or "tokenizer".
const char* kind_name(RepoKind kind);

// The file without which a folder is no model or adapter. It is linked last, so that a snapshot
// which this program has begun and not finished is never taken for a whole one.
const char* main_file(RepoKind kind);

inline constexpr const char* kWeightIndex = "model.safetensors.index.json";

// Files that a repository may have or not; all are read if there.
const std::vector<std::string>& optional_files(RepoKind kind);

// Of a repository's files those that are fetched, weights last, without the shards that
// kWeightIndex names. Never pickles, never other formats of the same weights. Errors, naming what
// is missing: kNotFound, kUnsupported (weights, but no safetensors).
Result<std::vector<std::string>> needed_files(RepoKind kind, const std::vector<std::string>& files,
                                              const std::string& repo);
// The shards that an index file names, each once. Errors: kInvalid.
Result<std::vector<std::string>> index_shards(const std::string& path);

struct SnapshotState {
  // Empty if the snapshot can be loaded; else a file that is not there.
  std::string missing;
  // Every optional file is there or known not to exist: nothing need be asked of the hub.
  bool complete = false;
};

SnapshotState check_snapshot(const HubCache& cache, const std::string& commit, RepoKind kind);

}  // namespace lk
